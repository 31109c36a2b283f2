"""The store in which the processes of a job find each other."""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are, and documented

__all__ = ["open_store"]

#: Seconds in which all processes of a job must reach its store.
_JOIN = 300


def open_store(host: str, port: int, *, opens: bool = False) -> Store:
    """A connection to a job's store. Each thread and each process needs its own.

    Args:
        host: Host of the store.
        port: Port of the store.
        opens: Whether to open the store, and not only connect to it.
    """
    timeout = timedelta(seconds=_JOIN)
    store = TCPStore(host, port, is_master=opens, timeout=timeout, wait_for_workers=False)
    # A restarted job must not find the values of the job before.
    return PrefixStore(f"longca/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
