"""Messages between LongCA and a process that runs a plugin's hooks.

Requests are pickled, because the process trusts LongCA. Answers are JSON of a bounded length, because LongCA does not
trust the process. A message is its length in 8 bytes, and then its bytes.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections import OrderedDict
from typing import Any

from longca.manifests import Layout
from longca.masks import PATTERNS, Mask, Pattern

__all__ = ["LENGTH", "Reader", "Writer", "receive", "send"]

LENGTH = struct.Struct("!Q")
_KEPT = 64


class Writer:
    """Pickles requests. A mask or a layout that was sent a short while ago is sent as a number."""

    def __init__(self) -> None:
        self._sent: OrderedDict[int, tuple[int, object]] = OrderedDict()
        self._next = 0

    def write(self, request: object) -> bytes:
        """The bytes of a request."""
        fresh: list[tuple[int, bytes]] = []

        def number(value: object) -> object:
            if isinstance(value, Pattern) and PATTERNS.get(value.name) is value:
                return value.name
            if not isinstance(value, Mask | Layout):
                return None
            if id(value) not in self._sent:
                self._sent[id(value)] = self._next, value
                fresh.append((self._next, pickle.dumps(value)))
                self._next += 1
            self._sent.move_to_end(id(value))
            return self._sent[id(value)][0]

        body = _dumps(request, number)
        # The reader forgets these after the request.
        gone = [self._sent.popitem(last=False)[1][0] for _ in range(len(self._sent) - _KEPT)]
        return pickle.dumps((fresh, body, gone))


class Reader:
    """Reads the requests of a `Writer`."""

    def __init__(self) -> None:
        self._held: dict[int, object] = {}

    def read(self, data: bytes) -> Any:
        """The request."""
        fresh, body, gone = pickle.loads(data)
        self._held |= {number: pickle.loads(value) for number, value in fresh}
        unpickler = pickle.Unpickler(io.BytesIO(body))
        unpickler.persistent_load = self._known  # type: ignore[method-assign]
        request = unpickler.load()
        for number in gone:
            del self._held[number]
        return request

    def _known(self, token: Any) -> object:
        return PATTERNS[token] if isinstance(token, str) else self._held[token]


def _dumps(request: object, number: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.persistent_id = number  # type: ignore[method-assign]
    pickler.dump(request)
    return buffer.getvalue()


def send(connection: socket.socket, data: bytes) -> None:
    """Sends a message."""
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes | None:
    """Receives a message, however long. None if the other side is gone."""
    head = _exactly(connection, LENGTH.size)
    return None if head is None else _exactly(connection, LENGTH.unpack(head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        if not (part := connection.recv(min(size - len(parts), 2**20))):
            return None
        parts += part
    return bytes(parts)
