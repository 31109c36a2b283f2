"""Agreement: the ranks of a mesh compare a call before its data move.

Each rank writes its request to the store of `torch.distributed`. The ranks compare digests. If all are equal, the call
goes on. Else every rank raises the same error, which names the differences and the ranks. A rank that fails by itself
writes its error, and the others raise an error that names this rank. No device and no collective is involved, so any
thread of the program may be in a collective at that time.

Ranks compare at the first use of a plan. Later calls find the plan and exchange nothing, so no rank would see that the
others reuse another plan for tensors of equal shapes. Each rank keeps a list of its calls. The ranks compare it with
every new call, and in every EVERYth known one.

So a call is either new to all ranks or to none, on these conditions:

- All ranks of the mesh make the same calls in the same order, as for any collective.
- They reuse masks alike. A rank that makes a mask anew, while the others reuse theirs, is the only one with a new call.
- Each mesh has a cache of its own. So calls on other meshes, which other ranks do not make, displace no plan.

A rank that has waited for the others for ALARM seconds logs which ranks it waits for. It waits for the timeout of
`torch.distributed.init_process_group`. Then it raises an error that names the absent ranks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store, _get_default_store

from longca.errors import RequestError

__all__ = ["ALARM", "EVERY", "PATIENCE", "Ranks"]

#: Known calls in a row after which the ranks compare them. A comparison takes the host about a millisecond.
EVERY = 256
#: Seconds that a rank with an error of its own waits for the others, before it raises the error.
PATIENCE = 10.0
#: Seconds that a rank waits before it logs whom it waits for.
ALARM = 10.0

#: The key of a rank's error.
_FAILED = "failed"
#: Characters of an error, and ranks in a message.
_MOST_TEXT, _MOST_RANKS = 1000, 8

_log = logging.getLogger("longca")


class Ranks:
    """The ranks of a mesh, as one of them sees them.

    Args:
        store: The store that all of them reach.
        members: Their numbers in `torch.distributed`.
        rank: The number of this one.
        name: A name that distinguishes meshes of the same ranks.
    """

    def __init__(self, store: Store, members: Sequence[int], rank: int, name: str = "") -> None:
        self.store, self._members, self._rank = store, tuple(members), rank
        self._prefix = f"longca/{_digest(json.dumps([list(members), name]).encode())}"
        self._number = 0  # of the next comparison
        self._keys: set[str] = set()  # written by this rank for it
        self._old_keys: set[str] = set()  # written for the comparison before
        self._gave_up = False  # the others count this rank already
        self._calls = bytearray()  # numbers of calls that were not compared yet, eight bytes each
        self._written = 0  # bytes of them that this rank has written for this comparison
        self._common_error: RequestError | None = None  # the latest error that all ranks raise
        _RANKS[self._prefix, rank] = self

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Ranks:
        """The ranks of a mesh that includes this process: the same object until the process group ends."""
        members, rank, store = mesh.mesh.flatten().tolist(), dist.get_rank(), _get_default_store()
        name = f"{tuple(mesh.mesh.shape)} {mesh.mesh_dim_names}"
        known = _RANKS.get((f"longca/{_digest(json.dumps([members, name]).encode())}", rank))
        return known if known is not None and known.store is store else cls(store, members, rank, name)

    def note(self, number: int) -> bool:
        """Notes a call for the next comparison, before its data move. Returns whether the ranks are to compare now.

        Args:
            number: A number that stands for the whole request. All ranks give it alike.
        """
        self._calls += number.to_bytes(8, "little")
        return len(self._calls) >= 8 * EVERY

    def agree(self, words: Mapping[str, str]) -> None:
        """Returns if all ranks give equal words, and have made the same calls since they last compared.

        Args:
            words: Names of things, and their values on this rank.

        Raises:
            RequestError: The ranks differ, or one has failed, or one did not come. All ranks that came raise it.
        """
        if len(self._members) == 1:
            return
        try:
            self._compare(words)
        except RequestError as error:
            self._common_error = error
            raise

    @contextmanager
    def sharing_errors(self) -> Iterator[None]:
        """Shares an error inside with the other ranks. They learn it where they compare next."""
        try:
            yield
        except Exception as error:
            self.share(error)
            raise

    def share(self, error: Exception) -> None:
        """Shares an error of this rank with the others. They learn it where they compare next.

        It waits for them for `PATIENCE` seconds at most. They may have no new call to make.
        """
        if len(self._members) == 1 or error is self._common_error:
            return
        self._catch_up()
        text = json.dumps({_FAILED: f"{type(error).__name__}: {error}"[:_MOST_TEXT]})
        with suppress(RuntimeError):  # the error counts more than a store that is gone
            self._write(_FAILED, text)
            self._meet(_FAILED, PATIENCE)

    @property
    def _key(self) -> str:
        """The beginning of the keys of the next comparison."""
        return f"{self._prefix}/{self._number}"

    def _compare(self, words: Mapping[str, str]) -> None:
        self._catch_up()
        calls = f"{len(self._calls) // 8} since the ranks last compared (digest {_digest(self._calls)})"
        text = json.dumps({**words, "calls before": calls})
        key, digest = self._key, _digest(text.encode())
        seconds: float = self.store.timeout.total_seconds()  # type: ignore[attr-defined]  # PyTorch's stubs lack it
        self._write(digest, text)
        if not self._meet(digest, seconds):
            raise RequestError(
                f"{_named(self._absent())} made no new call on this mesh within {seconds:g} s, while "
                f"rank {self._rank} waited. All ranks of a mesh make the same calls in the same order, and reuse masks "
                "alike. The timeout of init_process_group says how long a rank waits"
            )
        if self._count(f"{key}/{digest}") != len(self._members):
            raise RequestError(
                _disagreement({rank: json.loads(self.store.get(f"{key}/{rank}")) for rank in self._members})
            )

    def _write(self, digest: str, text: str) -> None:
        """Writes this rank's part of the next comparison: a text, and a word by which equal texts are counted."""
        key, self._written = self._key, len(self._calls)
        self.store.set(f"{key}/{self._rank}", text)
        self.store.add(f"{key}/{digest}", 1)
        if not self._gave_up:
            self.store.add(f"{key}/all", 1)
        self._keys |= {f"{key}/{self._rank}", f"{key}/{digest}", f"{key}/all"}

    def _meet(self, digest: str, seconds: float) -> bool:
        """Whether all ranks come in time. Then the next comparison is due."""
        key, size, began, alarm = self._key, len(self._members), time.monotonic(), ALARM
        while self._count(f"{key}/{digest}") < size and self._count(f"{key}/all") < size:
            if (waited := time.monotonic() - began) > seconds:
                self._gave_up = True
                return False
            if waited > alarm:
                alarm = seconds
                _log.warning(
                    "rank %s has a new call of longca.attention, and waits for %s. They may be busy, or make another "
                    "call. All ranks of a mesh make the same calls in the same order, and reuse masks alike",
                    self._rank,
                    _named(self._absent()),
                )
            time.sleep(min(0.05, waited / 10))
        # A rank that has come to this comparison has read the one before.
        for old in self._end():
            self.store.delete_key(old)
        return True

    def _absent(self) -> list[int]:
        return [rank for rank in self._members if not self.store.check([f"{self._key}/{rank}"])]

    def _end(self) -> set[str]:
        """Goes on to the next comparison. Returns the keys that no rank will read again."""
        over, self._old_keys, self._keys = self._old_keys, self._keys, set()
        self._number, self._gave_up = self._number + 1, False
        del self._calls[: self._written]
        self._written = 0
        return over

    def _catch_up(self) -> None:
        """Goes on to the next comparison if the others came to this one after this rank had given up."""
        if self._gave_up and self._count(f"{self._key}/all") == len(self._members):
            self._end()

    def _count(self, key: str) -> int:
        return int(self.store.get(key))


#: The ranks of all meshes, by the beginning of their keys and this process's rank.
_RANKS: dict[tuple[str, int], Ranks] = {}


def _disagreement(words: Mapping[int, Mapping[str, str]]) -> str:
    """The differences, the ranks that differ, and the way out, from the words of each rank."""
    failed = {rank: mine[_FAILED] for rank, mine in words.items() if _FAILED in mine}
    if failed:
        rank, message = next(iter(failed.items()))
        return f"{_named(list(failed))} failed, and no rank has moved data in this call. Rank {rank} raised {message}"
    return (
        "the ranks of a mesh were asked for different things, and no rank has moved data in this call. "
        f"{_differences(words)} Give the same mask, arguments and shapes on all ranks"
    )


def _differences(words: Mapping[int, Mapping[str, str]]) -> str:
    """A sentence on each thing that has different values on different ranks."""
    parts = []
    for name in dict.fromkeys(name for mine in words.values() for name in mine):
        holders: dict[str, list[int]] = {}
        for rank, mine in words.items():
            holders.setdefault(mine.get(name, "nothing"), []).append(rank)
        if len(holders) > 1:
            values = (
                f"{_named(ranks)} {'have' if len(ranks) > 1 else 'has'} {value}" for value, ranks in holders.items()
            )
            parts.append(f"{name}: {', '.join(values)}.")
    return " ".join(parts)


def _named(ranks: Sequence[int]) -> str:
    """Ranks in words, the first ones by their numbers."""
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"


def _digest(data: bytes | bytearray) -> str:
    """A digest that is the same in every process."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()
