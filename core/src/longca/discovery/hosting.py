"""Processes that run a plugin's hooks for LongCA: the side that asks, with deadlines. `hook_host` has the other side.

A process ends when it does not answer in time, when the question of this side ends, and at the latest some seconds
after its deadline by its own timer. Time for which it waits for a processor does not count, because no plugin can help
it that a machine is busy. It has its own process group, so no process that a plugin started outlives it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from longca.discovery.candidates import Candidate
from longca.discovery.probe_cache import MOST_BYTES
from longca.discovery.starting import Process, end, how_it_ended, start
from longca.discovery.wire import LENGTH, Writer
from longca.plain_text import plain_text
from longca.processor_time import waited

__all__ = ["HookHost", "HostError"]

_KEPT_OUTPUT = 4096
#: Seconds beyond a deadline after which a process ends by itself, if this process is gone.
_GRACE_S = 10.0
#: Seconds of waiting for a processor that do not count, at most.
_EXCUSED_S = 5.0
#: Reads of output at a time. A plugin may print without end.
_READS = 16


class HostError(Exception):
    """A process gave no answer, and was ended. The message is a clause without the plugin's name."""


class HookHost:
    """A process that imports one plugin and answers questions to its hooks.

    Args:
        candidate: The plugin.
        seconds: Seconds until its first message, the result of the import.
        doing: The first work in words, for messages.

    Raises:
        OSError: No process can be started.

    Attributes:
        took: Seconds that the last answer took, without those of waiting for a processor.
    """

    def __init__(self, candidate: Candidate, seconds: float, doing: str = "its import") -> None:
        self._socket, theirs = socket.socketpair()
        self._output, write_end = os.pipe()
        arguments = (seconds + _GRACE_S, candidate.module, candidate.attr, candidate.distribution)
        try:
            self._process: Process = start(theirs, write_end, arguments)
        except BaseException:
            self._socket.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        os.set_blocking(self._output, False)
        self.close = weakref.finalize(self, end, self._process, os.getpid(), self._socket, self._output)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._output, select.POLLIN)
        self._writer, self._said, self.took = Writer(), b"", 0.0
        self._expect(seconds, doing, MOST_BYTES)

    def _expect(self, seconds: float, doing: str, most: int) -> None:
        self._doing, self._seconds, self._most = doing, seconds, most
        self._asked, self._waited, self._received = time.monotonic(), waited(self._process.pid), bytearray()

    def ask(self, request: tuple[str, tuple[Any, ...]], seconds: float, doing: str, most: int = 2**20) -> Any:
        """Asks, and returns the answer's JSON as data.

        Args:
            request: The verb and its arguments, as `hook_host` knows them.
            seconds: Seconds until the answer.
            doing: The work in words, for messages.
            most: Bytes of the longest answer.

        Raises:
            HostError: There is no answer in time, or it is no JSON. The process is ended.
        """
        self._expect(seconds, doing, most)
        data = self._writer.write(request)
        try:
            self._socket.settimeout(seconds)
            self._socket.sendall(LENGTH.pack(len(data)) + data)
        except OSError:  # it ended, or reads nothing
            self._fail(self._ending())
        answer = None
        while answer is None:
            answer = self.message(0.05)
        self.took = time.monotonic() - self._asked - (waited(self._process.pid) - self._waited)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            self._fail(f"{doing} gave an answer that cannot be read")

    def message(self, wait: float = 0.0) -> bytes | None:
        """The next message, or None if it is not complete.

        Args:
            wait: Seconds to wait for a part of it.

        Raises:
            HostError: The process ended, is too late or too long. The process is ended.
        """
        self._poll.poll(1000 * wait)
        over = self._has_ended()
        closed = self._drain()
        if len(self._received) >= LENGTH.size:
            size = LENGTH.unpack(self._received[: LENGTH.size])[0]
            if size > self._most:
                self._fail(f"{self._doing} gave an answer of {size} bytes, and at most {self._most} are read")
            if len(self._received) >= LENGTH.size + size:
                return bytes(self._received[LENGTH.size : LENGTH.size + size])
        if over or closed:
            self._fail(self._ending())
        if self._is_late():
            advice = "; if it is only slow, give LONGCA_PROBE_TIMEOUT more seconds and run `longca plugins --reprobe`"
            late = f"{self._doing} did not end within {self._seconds:g} s"
            self._fail(late + advice * self._doing.endswith("import"))
        return None

    def _fail(self, message: str) -> NoReturn:
        self._drain()
        said = plain_text(self._said.decode("utf-8", "replace").strip().rpartition("\n")[2], 300)
        self.close()
        raise HostError(f"{message}; its last output: {said}" if said else message)

    def _ending(self) -> str:
        """How the process ended, in words."""
        waited = time.monotonic() + 0.5
        while not self._has_ended() and time.monotonic() < waited:
            time.sleep(0.005)
        return f"{self._doing} {how_it_ended(self._process.poll())}"

    def _is_late(self) -> bool:
        late = time.monotonic() - self._asked - self._seconds
        return late > 0 and late > min(_EXCUSED_S, waited(self._process.pid) - self._waited)

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def _drain(self) -> bool:
        """Takes all that was sent and printed. Whether the process closed its connection."""
        self._socket.settimeout(0)
        closed = False
        with suppress(BlockingIOError):
            while len(self._received) <= LENGTH.size + self._most and not closed:
                try:
                    part = self._socket.recv(2**20)
                except ConnectionError:
                    part = b""
                self._received += part
                closed = not part
        with suppress(BlockingIOError):
            for _ in range(_READS):
                if not (part := os.read(self._output, 2**16)):
                    with suppress(KeyError):
                        self._poll.unregister(self._output)
                    break
                self._said = (self._said + part)[-_KEPT_OUTPUT:]
        return closed
