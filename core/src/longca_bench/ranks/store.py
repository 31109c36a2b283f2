"""Store: where the processes of a job find each other."""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are, and documented

__all__ = ["open_store"]

#: Seconds within which all processes of a job have to come to its store.
_JOIN = 300


def open_store(host: str, port: int, *, opens: bool = False) -> Store:
    """A connection to a job's store; each thread and each process needs one of its own.

    Args:
        host: Where it is.
        port: Its port there.
        opens: Whether to open the store rather than to find it.
    """
    timeout = timedelta(seconds=_JOIN)
    store = TCPStore(host, port, is_master=opens, timeout=timeout, wait_for_workers=False)
    # Where the launcher restarts a job, nothing of the one before must be found.
    return PrefixStore(f"longca/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
