"""The time that a process could not use, because other processes had the processors."""

from __future__ import annotations

__all__ = ["waited"]


def waited(pid: int) -> float:
    """Seconds for which a process's first thread was ready and had no core. 0 where the system does not count."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
