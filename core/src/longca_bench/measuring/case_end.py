"""The end of a case by the code of a plugin, and its status."""

from __future__ import annotations

from longca.errors import LongCAError
from longca_bench.measuring.status import Status

__all__ = ["CaseEndError", "failure"]


class CaseEndError(LongCAError):
    """The code of a plugin has ended the case.

    Args:
        status: The status of the case.
        message: The reason.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def failure(*, exhausted: bool) -> Status:
    """The status of a case that an exception ended.

    Args:
        exhausted: Whether memory ran out.
    """
    return Status.OOM if exhausted else Status.ERROR
