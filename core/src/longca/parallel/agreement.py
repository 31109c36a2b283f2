"""Agreement: the ranks of a mesh compare a call before its data move.

Each rank writes what it was asked to the store of `torch.distributed`. The ranks compare digests. If all are equal, the
call goes on. Else every rank raises the same error, which says what differs and on which ranks. A rank that fails by
itself writes its error, and the others raise an error that names this rank. No device and no collective is involved, so
any thread of the program may be in a collective at that time.

Ranks compare at the first use of a plan. Later calls find the plan and exchange nothing, so no rank would see that the
others reuse another plan for tensors of equal shapes. Each rank keeps a tally of its calls. The ranks compare it with
every new call, and in every EVERYth known one.

So a call is either new to all ranks or to none, on these conditions:

- All ranks of the mesh make the same calls in the same order, as for any collective.
- They reuse masks alike. A rank that makes a mask anew, while the others reuse theirs, is alone with a new call.
- Each mesh has a cache of its own. So calls on other meshes, which other ranks do not make, displace no plan.

A rank that is alone with a new call waits as long as the store waits for a peer, which is the timeout of
`torch.distributed.init_process_group`. Then it raises an error that names the absent ranks.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store, _get_default_store

from longca.errors import RequestError
from longca.plain_text import plain_text

__all__ = ["EVERY", "PATIENCE", "Ranks"]

#: Known calls in a row after which the ranks compare them. A comparison takes the host about a millisecond.
EVERY = 256

#: Seconds that a rank with an error of its own waits for the others, before it raises the error.
PATIENCE = 10.0
#: Characters of an error that others are told, and ranks that a message names.
_MOST_TEXT, _MOST_RANKS = 1000, 8
_FAILED = "failed"


@dataclass
class _Turn:
    """The place of a rank in the row of comparisons.

    Attributes:
        number: The number of the next comparison.
        keys: The keys that this rank has written for it.
        before: The keys that it has written for the comparison before.
        has_come: Whether the other ranks count this one already. It gave up waiting for them.
        calls: The numbers of the calls that were not compared yet, in order: eight bytes each.
        said: Bytes of them that this rank has written for this comparison.
    """

    number: int = 0
    keys: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    has_come: bool = False
    calls: bytearray = field(default_factory=bytearray)
    said: int = 0

    def end(self) -> set[str]:
        """Goes on to the next comparison. Returns the keys that no rank will read again."""
        over, self.before, self.keys = self.before, self.keys, set()
        self.number, self.has_come = self.number + 1, False
        del self.calls[: self.said]
        self.said = 0
        return over

    def words(self) -> dict[str, str]:
        """The calls that were not compared yet, in words that ranks compare."""
        return {"calls before": f"{len(self.calls) // 8} since the ranks last compared (digest {_digest(self.calls)})"}


#: The turns of all meshes, by the beginning of their keys and the rank.
_TURNS: defaultdict[tuple[str, int], _Turn] = defaultdict(_Turn)


class Ranks:
    """The ranks of a mesh, as one of them sees them.

    Args:
        store: The store that all of them reach.
        members: Their numbers in `torch.distributed`.
        rank: The number of this one.
        name: A name that distinguishes meshes of the same ranks.
    """

    def __init__(self, store: Store, members: Sequence[int], rank: int, name: str = "") -> None:
        self._store, self._members, self._rank = store, members, rank
        about = json.dumps([list(members), name]).encode()
        self._prefix = f"longca/{_digest(about)}"
        self._turn = _TURNS[self._prefix, rank]
        self._is_settled = len(members) == 1
        self._timeout: float = store.timeout.total_seconds()  # type: ignore[attr-defined]  # PyTorch's stubs lack it

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Ranks:
        """The ranks of a mesh that includes this process."""
        name = f"{tuple(mesh.mesh.shape)} {mesh.mesh_dim_names}"
        return cls(_get_default_store(), mesh.mesh.flatten().tolist(), dist.get_rank(), name)

    def note(self, number: int) -> bool:
        """Notes a call for the next comparison. Returns whether the ranks are to compare now.

        Args:
            number: A number that stands for everything the call was asked. All ranks give it alike.
        """
        self._turn.calls += number.to_bytes(8, "little")
        return len(self._turn.calls) >= 8 * EVERY

    def agree(self, said: Mapping[str, str]) -> None:
        """Returns if all ranks say the same, and have made the same calls since they last compared.

        Args:
            said: Names of things, and their values on this rank.

        Raises:
            RequestError: The ranks differ, or one has failed, or one did not come. All ranks that came raise it.
        """
        if len(self._members) == 1:
            return
        self._is_settled = True  # whatever this raises, the others know
        self._catch_up()
        text = json.dumps({**said, **self._turn.words()})
        digest = _digest(text.encode())
        key = self._write(digest, text)
        if not self._meet(key, digest, self._timeout):
            raise RequestError(self._absence(key))
        if self._count(key, digest) != len(self._members):
            told = {rank: json.loads(self._store.get(f"{key}/{rank}")) for rank in self._members}
            raise RequestError(_failures(told) or _differences(told))
        self._is_settled = False

    @contextmanager
    def told(self) -> Iterator[None]:
        """Tells the other ranks of an error inside. They learn it where they compare next."""
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def tell(self, error: Exception) -> None:
        """Tells the other ranks of an error of this one. They learn it where they compare next.

        It waits for them for `PATIENCE` seconds at most. They may have no new call to make.
        """
        if not self._is_settled:
            self._catch_up()
            text = json.dumps({_FAILED: plain_text(f"{type(error).__name__}: {error}", _MOST_TEXT)})
            with suppress(RuntimeError):  # the error counts more than a store that is gone
                self._meet(self._write(_FAILED, text), _FAILED, PATIENCE)

    def _catch_up(self) -> None:
        """Goes on to the next comparison if the others came to this one after this rank had given up."""
        turn = self._turn
        if turn.has_come and self._count(f"{self._prefix}/{turn.number}", "all") == len(self._members):
            turn.end()

    def _write(self, digest: str, text: str) -> str:
        """Writes this rank's part of the next comparison, and returns the beginning of its keys."""
        turn, key = self._turn, f"{self._prefix}/{self._turn.number}"
        turn.said = len(turn.calls)
        self._store.set(f"{key}/{self._rank}", text)
        self._store.add(f"{key}/{digest}", 1)
        if not turn.has_come:
            self._store.add(f"{key}/all", 1)
        turn.keys |= {f"{key}/{self._rank}", f"{key}/{digest}", f"{key}/all"}
        return key

    def _meet(self, key: str, digest: str, seconds: float) -> bool:
        """Whether all ranks come in time."""
        size, began = len(self._members), time.monotonic()
        while self._count(key, digest) < size and self._count(key, "all") < size:
            if (waited := time.monotonic() - began) > seconds:
                self._turn.has_come = True
                return False
            time.sleep(min(0.05, waited / 10))
        # Whoever has come to this comparison has read the one before.
        for old in self._turn.end():
            self._store.delete_key(old)
        return True

    def _count(self, key: str, what: str) -> int:
        return int(self._store.get(f"{key}/{what}"))

    def _absence(self, key: str) -> str:
        absent = [rank for rank in self._members if not self._store.check([f"{key}/{rank}"])]
        return (
            f"{_named(absent)} made no new call on this mesh within {self._timeout:g} s, while "
            f"rank {self._rank} waited. All ranks of a mesh make the same calls in the same order, and reuse masks "
            "alike. The timeout of init_process_group says how long a rank waits"
        )


def _digest(data: bytes | bytearray) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _failures(told: Mapping[int, Mapping[str, str]]) -> str:
    """The sentence on ranks that have failed. Empty if none has."""
    failed = {rank: said[_FAILED] for rank, said in told.items() if _FAILED in said}
    if not failed:
        return ""
    rank, message = next(iter(failed.items()))
    return f"{_named(list(failed))} failed, and no rank has moved data in this call. Rank {rank} raised {message}"


def _differences(told: Mapping[int, Mapping[str, str]]) -> str:
    """The sentence on ranks that say other things."""
    parts = []
    for name in dict.fromkeys(name for said in told.values() for name in said):
        holders: dict[str, list[int]] = {}
        for rank, said in told.items():
            holders.setdefault(said.get(name, "nothing"), []).append(rank)
        if len(holders) > 1:
            values = (
                f"{_named(ranks)} {'have' if len(ranks) > 1 else 'has'} {value}" for value, ranks in holders.items()
            )
            parts.append(f"{name}: {', '.join(values)}.")
    return (
        "the ranks of a mesh were asked for different things, and no rank has moved data in this call. "
        f"{' '.join(parts)} Give the same mask, arguments and shapes on all ranks"
    )


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"
