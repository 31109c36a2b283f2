"""Statuses: the words for the end of a case, each with its meaning, its advice, and whether a run with it fails."""

from __future__ import annotations

from enum import StrEnum

from longca.errors import LongCAError

__all__ = ["CaseEndError", "Status", "failure"]

#: Advice for `oom` by the form of the mask, where the form is the likely cause.
_OUT_OF_MEMORY = {
    "dense": "A dense mask grows with the square of the length. Take a fused kernel that takes the mask's own form.",
    "block_sparse": "A block-sparse plan grows with the number of blocks. Take larger blocks, or fewer mask heads.",
}
#: Advice for a process that the system has probably ended.
_KILLED = "LongCA did not end the process. The system does when memory runs out: see dmesg, or a suite's `memory`."


class Status(StrEnum):
    """The end of a case, as records have it, with a sentence for the docs and a remedy for `{kernel}`."""

    meaning: str
    advice: str
    is_failure: bool

    def __new__(cls, value: str, meaning: str, advice: str = "", is_failure: bool = True) -> Status:
        """A member with its attributes."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning, member.advice, member.is_failure = meaning, advice, is_failure
        return member

    OK = "ok", "The case was verified, timed, and verified again.", "", False
    UNSUPPORTED = "unsupported", "No offer of the kernel covers the problem. The message gives the reasons.", "", False
    WRONG = (
        "wrong",
        "A result is wrong: before timing, in a timed call, or after timing. The record has no time.",
        "`longca verify --kernel {kernel}`, or --function for one of yours, shows whether it is wrong on small masks "
        "too. Do not train with it.",
    )
    OOM = (
        "oom",
        "Memory ran out, on the device or within the suite's `memory`.",
        "Take a shorter sequence, fewer heads or a smaller dtype, or see who else uses the device.",
    )
    ERROR = (
        "error",
        "The kernel raised. The message has the exception.",
        "`longca doctor` says whether the packages that plugins need are installed.",
    )
    TIMEOUT = (
        "timeout",
        "The case exceeded its deadline, and its process was ended. The message has the phase.",
        "Raise --timeout if the kernel is only slow. Report a kernel that hangs on one shape to its authors.",
    )
    CRASHED = (
        "crashed",
        "The process died. The message has the signal or the exit code.",
        "Run the case alone, with CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer, to see where it crashes.",
    )
    SUSPECT = (
        "suspect",
        "The time is not believed: the kernel is faster than the hardware can be, or two clocks disagree about it.",
        "The time is never ranked. Measure again with --wait-idle, and report a kernel that stays suspect.",
    )
    SKIPPED = "skipped", "An earlier case failed, and the suite has `fail_fast`. Use `--resume`."

    @property
    def word(self) -> str:
        """The word in a table's cell."""
        return "–" if self is Status.UNSUPPORTED else self.value.upper()

    def advise(self, kernel: str, message: str, form: str | None) -> str:
        """The remedy for a case with a message and the form of its offer, or an empty text."""
        if self is Status.OOM and form in _OUT_OF_MEMORY:
            return _OUT_OF_MEMORY[form]
        if self is Status.CRASHED and "SIGKILL" in message:
            return _KILLED
        return self.advice.format(kernel=kernel)


class CaseEndError(LongCAError):
    """The code of a plugin has ended the case, with a status and a reason."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def failure(*, exhausted: bool) -> Status:
    """The status of a case that an exception ended, which may say that memory ran out."""
    return Status.OOM if exhausted else Status.ERROR
