"""Keeping standard output clean while third-party code runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress

__all__ = ["stdout_to_stderr"]


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirects standard output to standard error, so that a listing's JSON stays valid.

    The file descriptor is redirected as well as `sys.stdout`, because C libraries and subprocesses write to it.
    """
    _flush()
    saved = None
    with suppress(OSError):
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _flush()
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
