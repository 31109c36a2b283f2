"""Peer access: which GPUs of this machine write into each other's memory, how fast, and whether symmetric memory works.

A process of its own measures it (`longca_bench.measuring.peer_copies`). A machine without two GPUs needs no process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from longca.errors import LongCAError
from longca.plain_text import plain_text

__all__ = ["DEADLINE", "PeerAccess", "measure_peer_access"]

#: Seconds in which the measurement ends, with importing torch in three processes.
DEADLINE = 120.0
_MODULE = "longca_bench.measuring.peer_copies"
_LAST_WORDS = 500  # characters of a complaint that are shown


@dataclass(frozen=True)
class PeerAccess:
    """The GPUs of a machine, and the copies between them.

    Attributes:
        reaches: Whether each GPU has access to the memory of each other one: [GPUs][GPUs]. True on the diagonal.
        bandwidths: 10⁹ bytes a second of a copy from each GPU to each other one, by a copy engine: [GPUs][GPUs]. None
            without access and on the diagonal.
        symmetric: The reason why two processes cannot share symmetric memory. Empty if they can.
    """

    reaches: tuple[tuple[bool, ...], ...]
    bandwidths: tuple[tuple[float | None, ...], ...]
    symmetric: str = ""

    def as_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
        return asdict(self)


def measure_peer_access(module: str = _MODULE) -> PeerAccess:
    """Measures copies between the GPUs of this machine.

    Args:
        module: The module that measures.

    Raises:
        LongCAError: The measurement failed, or did not end in time.
    """
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LongCAError(f"copies between GPUs did not end within {DEADLINE:g} s; they were ended") from None
    try:
        found = json.loads(ran.stdout.splitlines()[-1])
        rows = tuple(map(tuple, found["reaches"])), tuple(map(tuple, found["bandwidths"]))
        return PeerAccess(*rows, plain_text(found["symmetric"]))
    except (IndexError, KeyError, TypeError, ValueError):
        last = "".join(ran.stderr.strip().splitlines()[-1:])[-_LAST_WORDS:] or "nothing"
        raise LongCAError(
            f"copies between GPUs ended with code {ran.returncode}, and the last words are: {last}"
        ) from None
