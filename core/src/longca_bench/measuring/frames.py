"""Frames: messages to and from a process that is not trusted. Each has its length before it, as in `Connection`.

Such a process may stop in the middle of a frame, or read none. So nothing here waits: the caller waits for each part.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

__all__ = ["Wait", "is_ready", "receive", "send", "send_descriptor"]

#: Waits until a connection is ready for `select.POLLIN` or `select.POLLOUT`. It raises an error to give up.
Wait = Callable[[int], None]

_LENGTH = struct.Struct("!i")


def is_ready(connection: Connection, way: int, seconds: float) -> bool:
    """Whether a connection becomes ready in some seconds. A connection that was closed is ready.

    Args:
        connection: The connection.
        way: `select.POLLIN` to read, or `select.POLLOUT` to write.
        seconds: The seconds.
    """
    poll = select.poll()
    poll.register(connection.fileno(), way)
    return bool(poll.poll(seconds * 1e3))


def receive(connection: Connection, longest: int, wait: Wait) -> bytes:
    """The next frame.

    Args:
        connection: The connection.
        longest: The most bytes that a frame may have.
        wait: Waits for the next bytes.

    Raises:
        EOFError: The other end is closed.
        OSError: The connection is broken.
        ValueError: The length is negative or too large.
    """
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size, wait))
    if not 0 <= length <= longest:
        raise ValueError(f"a frame has {length} bytes, and at most {longest} are allowed")
    return _read(connection, length, wait)


def send(connection: Connection, message: object, wait: Wait) -> None:
    """Sends a pickled message.

    Args:
        connection: The connection.
        message: The message.
        wait: Waits until there is space for more bytes.

    Raises:
        OSError: The connection is broken.
    """
    content = ForkingPickler.dumps(message)
    left = memoryview(_LENGTH.pack(len(content)) + bytes(content))
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as line:
        while left:
            wait(select.POLLOUT)
            left = left[line.send(left, socket.MSG_DONTWAIT) :]


def send_descriptor(connection: Connection, fd: int, wait: Wait) -> None:
    """Sends a file descriptor, for `multiprocessing.reduction.recv_handle`. The arguments and errors are `send`'s."""
    wait(select.POLLOUT)
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as line:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
        line.sendmsg([b"\x01"], [rights], socket.MSG_DONTWAIT)


def _read(connection: Connection, count: int, wait: Wait) -> bytes:
    content = bytearray()
    while len(content) < count:
        wait(select.POLLIN)
        part = os.read(connection.fileno(), count - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
