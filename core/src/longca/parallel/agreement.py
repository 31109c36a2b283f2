"""Agreement: the ranks of a mesh compare a call before its data move.

Each rank writes its request to the store of `torch.distributed`, and the ranks compare digests. If all are equal, the
call goes on. Else every rank raises the same error, which names the differences and the ranks. A rank that fails by
itself writes its error, and the others raise an error that names this rank. No device and no collective is involved, so
any thread of the program may be in a collective at that time.

Ranks compare at the first use of a plan. Later calls find the plan and exchange nothing. Each rank notes them, and the
next comparison is of the calls since the one before, too. So all ranks of a mesh make the same calls in the same order,
as for any collective, and reuse masks alike. A rank that makes a mask anew, while the others reuse theirs, is the only
one with a new call. It logs which ranks it waits for after ALARM seconds, and raises an error that names them after the
timeout of `torch.distributed.init_process_group`.
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

__all__ = ["ALARM", "PATIENCE", "Ranks"]

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
    """The ranks of a mesh, as one of them sees them. Ranks are numbered as in `torch.distributed`.

    The name distinguishes meshes of the same ranks.
    """

    def __init__(self, store: Store, members: Sequence[int], rank: int, name: str = "") -> None:
        self.store, self._members, self._rank = store, tuple(members), rank
        self._prefix = f"longca/{_digest(json.dumps([list(members), name]))}"
        self._number = 0  # of the next comparison
        self._calls, self._digest = 0, ""  # since the latest comparison
        self._keys: tuple[str, ...] = ()  # written for the latest comparison
        self._old_keys: tuple[str, ...] = ()  # and for the one before
        self._common_error: RequestError | None = None  # the latest error that all ranks raise
        _RANKS[self._prefix, rank] = self

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Ranks:
        """The ranks of a mesh that includes this process: the same object until the process group ends."""
        members, rank, store = mesh.mesh.flatten().tolist(), dist.get_rank(), _get_default_store()
        name = f"{tuple(mesh.mesh.shape)} {mesh.mesh_dim_names}"
        known = _RANKS.get((f"longca/{_digest(json.dumps([members, name]))}", rank))
        return known if known is not None and known.store is store else cls(store, members, rank, name)

    def note(self, call: str) -> None:
        """Notes a call for the next comparison, before its data move. All ranks describe it alike."""
        self._calls, self._digest = self._calls + 1, _digest(self._digest + call)

    def agree(self, words: Mapping[str, str]) -> None:
        """Returns if all ranks give equal words, and made the same calls. Words are names of things, and their values.

        Raises:
            RequestError: The ranks differ, or one has failed, or one did not come. All ranks that came raise it.
        """
        if len(self._members) == 1:
            return
        seconds: float = self.store.timeout.total_seconds()  # type: ignore[attr-defined]  # PyTorch's stubs lack it
        calls = f"{self._calls} since the ranks last compared (digest {self._digest})"
        key, equal = self._write({**words, "calls before": calls})
        if not self._meet(key, seconds):
            message = (
                f"{_named(self._absent(key))} made no new call on this mesh within {seconds:g} s, while "
                f"rank {self._rank} waited. All ranks of a mesh make the same calls in the same order, and reuse masks "
                "alike. The timeout of init_process_group says how long a rank waits"
            )
        elif int(self.store.get(equal)) == len(self._members):
            return
        else:
            message = _disagreement({rank: json.loads(self.store.get(f"{key}/{rank}")) for rank in self._members})
        self._common_error = RequestError(message)
        raise self._common_error

    @contextmanager
    def sharing_errors(self) -> Iterator[None]:
        """Shares an error inside with the other ranks. They learn it where they compare next."""
        try:
            yield
        except Exception as error:
            self.share(error)
            raise

    def share(self, error: Exception) -> None:
        """Shares an error of this rank with the others, which learn it where they compare next, if they do."""
        if len(self._members) == 1 or error is self._common_error:
            return
        with suppress(RuntimeError):  # the error counts more than a store that is gone
            key, _ = self._write({_FAILED: f"{type(error).__name__}: {error}"[:_MOST_TEXT]})
            self._meet(key, PATIENCE)

    def _write(self, words: Mapping[str, str]) -> tuple[str, str]:
        """Writes this rank's words for the next comparison. Returns its key, and the key that counts equal words."""
        text, key = json.dumps(words), f"{self._prefix}/{self._number}"
        equal = f"{key}/{_digest(text)}"
        self._number, self._calls, self._digest = self._number + 1, 0, ""
        self._old_keys, self._keys = self._keys, (f"{key}/{self._rank}", f"{key}/all", equal)
        self.store.set(f"{key}/{self._rank}", text)
        self.store.add(equal, 1)
        self.store.add(f"{key}/all", 1)
        return key, equal

    def _meet(self, key: str, seconds: float) -> bool:
        """Whether all ranks come to a comparison in time."""
        began, alarm = time.monotonic(), ALARM
        while int(self.store.get(f"{key}/all")) < len(self._members):
            if (waited := time.monotonic() - began) > seconds:
                return False
            if waited > alarm:
                alarm = seconds
                _log.warning(
                    "rank %s has a new call of longca.attention, and waits for %s. They may be busy, or make another "
                    "call. All ranks of a mesh make the same calls in the same order, and reuse masks alike",
                    self._rank,
                    _named(self._absent(key)),
                )
            time.sleep(min(0.05, waited / 10))
        for old in self._old_keys:  # a rank that has come to this comparison has read the one before
            self.store.delete_key(old)
        return True

    def _absent(self, key: str) -> list[int]:
        return [rank for rank in self._members if not self.store.check([f"{key}/{rank}"])]


#: The ranks of all meshes, by the beginning of their keys and this process's rank.
_RANKS: dict[tuple[str, int], Ranks] = {}


def _disagreement(words: Mapping[int, Mapping[str, str]]) -> str:
    """The differences, the ranks that differ, and the way out, from the words of each rank."""
    failed = {rank: mine[_FAILED] for rank, mine in words.items() if _FAILED in mine}
    if failed:
        rank, message = next(iter(failed.items()))
        return f"{_named(list(failed))} failed, and no rank has moved data in this call. Rank {rank} raised {message}"
    differences = []
    for name in dict.fromkeys(name for mine in words.values() for name in mine):
        holders: dict[str, list[int]] = {}
        for rank, mine in words.items():
            holders.setdefault(mine.get(name, "nothing"), []).append(rank)
        if len(holders) > 1:
            values = (
                f"{_named(ranks)} {'have' if len(ranks) > 1 else 'has'} {value}" for value, ranks in holders.items()
            )
            differences.append(f"{name}: {', '.join(values)}.")
    return (
        "the ranks of a mesh were asked for different things, and no rank has moved data in this call. "
        f"{' '.join(differences)} Give the same mask, arguments and shapes on all ranks"
    )


def _named(ranks: Sequence[int]) -> str:
    """Ranks in words, the first ones by their numbers."""
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_RANKS]))}{more}"


def _digest(text: str) -> str:
    """A digest that is the same in every process."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
