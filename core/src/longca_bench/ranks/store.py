"""The store in which the processes of a job find each other."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are, and documented

from longca_bench.ranks.job import LOOPBACK

__all__ = ["open_store", "serve_store"]

#: Seconds in which all processes of a job must reach its store.
_JOIN = timedelta(seconds=300)


def serve_store(host: str, port: int = 0) -> TCPStore:
    """Opens a job's store in this process. It ends with the object.

    Args:
        host: Host of the store. A store on LOOPBACK listens there alone, and any other one on all addresses.
        port: Port of the store. 0 takes a free one.
    """
    fd = None
    if host == LOOPBACK:  # PyTorch's own socket would listen on all addresses
        listener = socket.create_server((host, port))
        port = listener.getsockname()[1]
        fd = listener.detach()
    return TCPStore(host, port, is_master=True, timeout=_JOIN, wait_for_workers=False, master_listen_fd=fd)


def open_store(host: str, port: int) -> Store:
    """A connection to a job's store. Each thread and each process needs its own.

    Args:
        host: Host of the store.
        port: Port of the store.
    """
    store = TCPStore(host, port, timeout=_JOIN, wait_for_workers=False)
    # A restarted job must not find the values of the job before.
    return PrefixStore(f"longca/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
