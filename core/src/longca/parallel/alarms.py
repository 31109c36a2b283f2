"""Alarms: a rank that waits with a new call asks the other ranks whether they made a known one in its place.

A known call exchanges nothing, so a rank that made it does not see that others wait for a comparison. A rank that has
waited `ALARM` seconds raises an alarm in the store: the number of the comparison, and how many calls it had noted. Each
process has a listener, a thread that looks for alarms. A rank that has noted more calls has gone past the comparison.
Its listener answers in the rank's place, logs the error, and leaves it to the rank's next call. So all ranks that wait
end at once, and training pays for it neither time nor a word to the store in its calls.

A listener looks into the store while data of a known call may be on their way. It looks again after `PAUSE` seconds,
and then after intervals that double, so that a program that is about to end leaves the store in peace.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
import time
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from longca.parallel.told import KNOWN, sentences
from longca.parallel.turns import TURNS, Turn

__all__ = ["ALARM", "PAUSE", "Alarm", "listen", "raise_alarm"]

#: Seconds that a rank waits for the others before it raises an alarm, and seconds after which a listener looks.
ALARM, PAUSE = 1.0, 1.0

#: Alarms that stay in the store.
_KEPT = 64

_log = logging.getLogger("longca")


class Alarm(NamedTuple):
    """A rank that waits.

    Attributes:
        prefix: The beginning of its mesh's keys.
        number: The number of the comparison.
        calls: Calls that the rank had noted since the comparison before.
        rank: The rank.
        text: The rank's words, as it wrote them.
    """

    prefix: str
    number: int
    calls: int
    rank: int
    text: str


def raise_alarm(store: Store, turn: Turn, text: str) -> None:
    """Raises an alarm for a rank that waits. One rank does it for all that have noted as many calls."""
    calls = turn.said // 8
    once = f"{turn.key}/alarms of {calls}"
    turn.keys.add(once)
    if store.add(once, 1) > 1:
        return
    number = store.add("longca/alarms", 1)
    store.set(f"longca/alarm {number}", json.dumps(Alarm(turn.prefix, turn.number, calls, turn.rank, text)))
    if number > _KEPT:
        store.delete_key(f"longca/alarm {number - _KEPT}")


class _Listener(threading.Thread):
    """Looks for alarms in a store, and answers them for the ranks of this process."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="longca-alarms", daemon=True)
        self.store: Store | None = store
        self._over = threading.Event()
        self._next = store.add("longca/alarms", 0) + 1
        self._standing: list[Alarm] = []
        self._seen, self._since, self._wait = 0, 0.0, PAUSE

    def run(self) -> None:
        try:
            while not self._over.wait(PAUSE / 4) and self.store is not None and dist.is_initialized():
                if self._is_due():
                    self._look(self.store)
        except RuntimeError:  # the store is gone, and the ranks with it
            return
        finally:
            self.store = None  # it ends with the process group

    def end(self) -> None:
        """Ends the thread."""
        self._over.set()
        self.join(PAUSE)

    def _is_due(self) -> bool:
        """Whether data of known calls have been on their way for another interval."""
        moving = [turn for turn in list(TURNS.values()) if turn.is_moving]
        seen, now = sum(turn.number + len(turn.calls) for turn in moving), time.monotonic()
        if seen != self._seen or not moving:
            self._seen, self._since, self._wait = seen, now, PAUSE
        if now - self._since < self._wait:
            return False
        self._wait *= 2
        return True

    def _look(self, store: Store) -> None:
        while store.check([key := f"longca/alarm {self._next}"]):
            self._standing.append(Alarm(*json.loads(store.get(key))))
            self._next += 1
        self._standing = [alarm for alarm in self._standing if not self._is_over(store, alarm)]

    def _is_over(self, store: Store, alarm: Alarm) -> bool:
        """Whether an alarm needs no look any more. Answers it for ranks that have gone past the comparison."""
        is_over = True
        for turn in list(TURNS.values()):
            if turn.prefix == alarm.prefix and turn.rank != alarm.rank:
                is_over &= _is_answered(store, turn, alarm)
        return is_over


def _is_answered(store: Store, turn: Turn, alarm: Alarm) -> bool:
    with turn.lock:
        if turn.number > alarm.number or turn.keys or turn.has_come:
            return True  # the rank has come by itself
        if turn.number < alarm.number or len(turn.calls) // 8 <= alarm.calls:
            return False
        text = json.dumps({**turn.latest, KNOWN: "begun"})
        turn.told = sentences({alarm.rank: json.loads(alarm.text), turn.rank: json.loads(text)})
        turn.write(store, KNOWN, text, alarm.calls)
        turn.has_come = True
    _log.error("on rank %s: %s", turn.rank, turn.told)
    return True


_STARTING = threading.Lock()
_LISTENERS: list[_Listener] = []


def listen(store: Store) -> None:
    """Starts this process's listener, unless it listens to this store already."""
    if _LISTENERS and _LISTENERS[0].store is store and _LISTENERS[0].is_alive():
        return
    with _STARTING:
        end()
        _LISTENERS.append(_Listener(store))
        _LISTENERS[0].start()


@atexit.register
def end() -> None:
    """Ends this process's listener. Nothing may listen when the interpreter ends."""
    while _LISTENERS:
        _LISTENERS.pop().end()
