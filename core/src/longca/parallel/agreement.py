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

A rank that waits for the others raises an alarm in the store after ALARM seconds. A thread of each process looks for
alarms while data of a known call may be on their way. If its rank has made a known call in the place of the comparison,
the thread answers for the rank, logs the error, and leaves it to the rank's next call. So all waiting ranks end within
seconds. If the others made no call, the rank waits for the timeout of `torch.distributed.init_process_group`. Then it
raises an error that names the absent ranks.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import Store, _get_default_store

from longca.errors import RequestError

__all__ = ["ALARM", "EVERY", "PATIENCE", "Ranks", "end_listener"]

#: Known calls in a row after which the ranks compare them. A comparison takes the host about a millisecond.
EVERY = 256
#: Seconds that a rank with an error of its own waits for the others, before it raises the error.
PATIENCE = 10.0
#: Seconds that a rank waits before it raises an alarm, and after which a listener first looks for alarms.
ALARM = 1.0

#: Keys of a rank's error, and of a known call that it has begun.
_FAILED, _KNOWN = "failed", "known"
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
        self._lock = threading.RLock()  # held by the thread that writes for this rank
        self._number = 0  # of the next comparison
        self._keys: set[str] = set()  # written by this rank for it
        self._old_keys: set[str] = set()  # written for the comparison before
        self._is_counted = False  # the others count this rank already: it gave up, or its listener answered
        self._calls = bytearray()  # numbers of calls that were not compared yet, eight bytes each
        self._written = 0  # bytes of them that this rank has written for this comparison
        self._latest: Mapping[str, str] = {}  # the latest known call in words
        self.is_moving = False  # data of that call may be on their way
        self._missed = ""  # the error that the listener found
        self._common_error: RequestError | None = None  # the latest error that all ranks raise
        _RANKS[self._prefix, rank] = self

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Ranks:
        """The ranks of a mesh that includes this process: the same object until the process group ends."""
        members, rank, store = mesh.mesh.flatten().tolist(), dist.get_rank(), _get_default_store()
        name = f"{tuple(mesh.mesh.shape)} {mesh.mesh_dim_names}"
        known = _RANKS.get((f"longca/{_digest(json.dumps([members, name]).encode())}", rank))
        return known if known is not None and known.store is store else cls(store, members, rank, name)

    @property
    def progress(self) -> int:
        """A number that grows with each call."""
        return self._number + len(self._calls)

    def note(self, number: int, words: Mapping[str, str]) -> bool:
        """Notes a call for the next comparison, before its data move. Returns whether the ranks are to compare now.

        Args:
            number: A number that stands for the whole request. All ranks give it alike.
            words: The request in words that ranks compare.

        Raises:
            RequestError: This rank made another call before, where others came with a new one or failed.
        """
        self._raise_missed()
        self._latest = words
        self.is_moving = True
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
        _listen(self.store)

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
            self._meet(_FAILED, text, PATIENCE)

    def answer_alarm(self) -> None:
        """Answers an alarm for this rank, if the rank has made a known call in the place of the comparison."""
        with self._lock:
            if self._keys or self._is_counted or not self.store.check([f"{self._key}/alarm"]):
                return
            calls, rank, text = json.loads(self.store.get(f"{self._key}/alarm"))
            if len(self._calls) // 8 <= calls:
                return
            mine = {**self._latest, _KNOWN: "begun"}
            self._missed = _disagreement({rank: json.loads(text), self._rank: mine})
            self._write(_KNOWN, json.dumps(mine), calls)
            self._is_counted = True
        _log.error("on rank %s: %s", self._rank, self._missed)

    @property
    def _key(self) -> str:
        """The beginning of the keys of the next comparison."""
        return f"{self._prefix}/{self._number}"

    def _raise_missed(self) -> None:
        if self._missed:
            message, self._missed = self._missed, ""
            self._catch_up()
            raise RequestError(message)

    def _compare(self, words: Mapping[str, str]) -> None:
        self._raise_missed()
        self._catch_up()
        calls = f"{len(self._calls) // 8} since the ranks last compared (digest {_digest(self._calls)})"
        text = json.dumps({**words, "calls before": calls})
        key, digest = self._key, _digest(text.encode())
        seconds: float = self.store.timeout.total_seconds()  # type: ignore[attr-defined]  # PyTorch's stubs lack it
        self._write(digest, text)
        if not self._meet(digest, text, seconds):
            absent = [rank for rank in self._members if not self.store.check([f"{key}/{rank}"])]
            raise RequestError(
                f"{_named(absent)} made no new call on this mesh within {seconds:g} s, while "
                f"rank {self._rank} waited. All ranks of a mesh make the same calls in the same order, and reuse masks "
                "alike. The timeout of init_process_group says how long a rank waits"
            )
        if self._count(f"{key}/{digest}") != len(self._members):
            raise RequestError(
                _disagreement({rank: json.loads(self.store.get(f"{key}/{rank}")) for rank in self._members})
            )

    def _write(self, digest: str, text: str, calls: int | None = None) -> None:
        """Writes this rank's part of the next comparison.

        Args:
            digest: A word by which equal texts are counted.
            text: The text.
            calls: Calls that come before the comparison. None for all that were noted.
        """
        with self._lock:
            key, self._written = self._key, len(self._calls) if calls is None else 8 * calls
            self.store.set(f"{key}/{self._rank}", text)
            self.store.add(f"{key}/{digest}", 1)
            if not self._is_counted:
                self.store.add(f"{key}/all", 1)
            self._keys |= {f"{key}/{self._rank}", f"{key}/{digest}", f"{key}/all"}

    def _meet(self, digest: str, text: str, seconds: float) -> bool:
        """Whether all ranks come in time. Then the next comparison is due. A rank that waits for long raises alarms."""
        key, size, began, alarm = self._key, len(self._members), time.monotonic(), ALARM
        while self._count(f"{key}/{digest}") < size and self._count(f"{key}/all") < size:
            if (waited := time.monotonic() - began) > seconds:
                self._is_counted = True
                return False
            if waited > alarm:
                self._raise_alarm(text)
                alarm = waited + ALARM
            time.sleep(min(0.05, waited / 10))
        # A rank that has come to this comparison has read the one before.
        for old in self._end():
            self.store.delete_key(old)
        return True

    def _raise_alarm(self, text: str) -> None:
        """Says that this rank waits. Of several ranks, the one with the fewest calls counts."""
        key, calls = f"{self._key}/alarm", self._written // 8
        if not self.store.check([key]) or json.loads(self.store.get(key))[0] > calls:
            self.store.set(key, json.dumps([calls, self._rank, text]))
            self._keys.add(key)

    def _end(self) -> set[str]:
        """Goes on to the next comparison. Returns the keys that no rank will read again."""
        with self._lock:
            over, self._old_keys, self._keys = self._old_keys, self._keys, set()
            self._number, self._is_counted = self._number + 1, False
            del self._calls[: self._written]
            self._written = 0
            return over

    def _catch_up(self) -> None:
        """Goes on to the next comparison if the others came to this one after this rank had given up."""
        if self._is_counted and self._count(f"{self._key}/all") == len(self._members):
            self._end()

    def _count(self, key: str) -> int:
        return int(self.store.get(key))


#: The ranks of all meshes, by the beginning of their keys and this process's rank.
_RANKS: dict[tuple[str, int], Ranks] = {}


class _Listener(threading.Thread):
    """Looks for alarms in a store, and answers them for the ranks of this process.

    It looks ALARM seconds after the latest call whose data may be on their way, and then after intervals that double,
    so that a program that is about to end leaves the store in peace.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(name="longca-alarms", daemon=True)
        self.store: Store | None = store
        self._over = threading.Event()

    def run(self) -> None:
        seen, since, wait = 0, 0.0, ALARM
        try:
            while not self._over.wait(ALARM / 4) and dist.is_initialized():
                moving = [ranks for ranks in list(_RANKS.values()) if ranks.is_moving and ranks.store is self.store]
                progress, now = sum(ranks.progress for ranks in moving), time.monotonic()
                if progress != seen or not moving:
                    seen, since, wait = progress, now, ALARM
                elif now - since >= wait:
                    wait *= 2
                    for ranks in moving:
                        ranks.answer_alarm()
        except RuntimeError:  # the store is gone, and the ranks with it
            return
        finally:
            self.store = None  # it ends with the process group

    def end(self) -> None:
        """Ends the thread."""
        self._over.set()
        self.join(ALARM)


_STARTING = threading.Lock()
_LISTENERS: list[_Listener] = []


def _listen(store: Store) -> None:
    """Starts this process's listener, unless it listens to this store already."""
    if not (_LISTENERS and _LISTENERS[0].store is store and _LISTENERS[0].is_alive()):
        with _STARTING:
            end_listener()
            _LISTENERS.append(_Listener(store))
            _LISTENERS[0].start()


@atexit.register
def end_listener() -> None:
    """Ends this process's listener. Nothing may listen when the interpreter ends."""
    while _LISTENERS:
        _LISTENERS.pop().end()


def _disagreement(words: Mapping[int, Mapping[str, str]]) -> str:
    """The differences, the ranks that differ, and the way out, from the words of each rank."""
    known = [rank for rank, mine in words.items() if _KNOWN in mine]
    others = {rank: mine for rank, mine in words.items() if rank not in known}
    failed = {rank: mine[_FAILED] for rank, mine in others.items() if _FAILED in mine}
    if failed:
        rank, message = next(iter(failed.items()))
        moved = f"{_named(known)} had begun the call" if known else "no rank has moved data in this call"
        return f"{_named(list(failed))} failed, and {moved}. Rank {rank} raised {message}"
    if known:
        common = set.intersection(*(set(mine) for mine in words.values()))
        shared = {rank: {name: mine[name] for name in mine if name in common} for rank, mine in words.items()}
        found = _differences(shared)
        return (
            f"{_named(known)} made a call that was known there, while {_named(list(others))} came with a new one. "
            f"{found or 'Both ask for the same, so the mask, the layout or the mesh was made anew.'} "
            f"The call has begun on {_named(known)}, and waits for the others. All ranks of a mesh make the same calls "
            "in the same order, and reuse masks, layouts and meshes alike"
        )
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
