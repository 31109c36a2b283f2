"""Lateness: whether a device goes on with a kernel's work after its calls have ended.

The worker waits for its whole device after the results were copied. If nothing is left to do, that takes microseconds.
The host's own pauses can make a single wait long, and an honest kernel must not suffer from them. So only a kernel
whose calls are late again is wrong.
"""

from __future__ import annotations

__all__ = ["Lateness"]

#: Seconds for which a device may go on after a call has ended. The harness's own work takes microseconds.
LATE = 1e-3
#: Calls of a case that may be later than that.
PAUSES = 1


class Lateness:
    """The late calls of a case."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._calls = 0

    def take(self, seconds: float) -> str:
        """Notes a call, and returns the objection to it in a sentence, or an empty text.

        Args:
            seconds: Seconds for which the device went on after the call.
        """
        self._calls += 1
        if seconds <= LATE:
            return ""
        self._late.append(seconds)
        if len(self._late) <= PAUSES:
            return ""
        return (
            f"the device went on for {seconds * 1e3:.3g} ms after the call had ended, "
            f"and {len(self._late)} of {self._calls} calls were late"
        )
