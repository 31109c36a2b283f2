"""A process that runs a module of LongCA, and everything that it starts. Both end together.

A variable of the environment marks the process. Its own children inherit the mark, in any session or group.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from longca.plain_text import plain_text
from longca.processes import end_with_parent, how_it_ended

__all__ = ["ChildProcess", "serve"]

_MARK = "LONGCA_CHILD"
_ANSWER = 5.0  # seconds until a process that closed its connection has ended
_READ = 2.0  # seconds in which the output of a process that has ended is read
_LAST_WORDS = 1000  # characters of the output that are kept
_LOOKS = 50  # looks for processes that are left
_PAUSE = 0.01  # seconds between two looks


class ChildProcess:
    """A process in a session of its own that runs a module. Its argument is the descriptor of a connection to it.

    It does not get `hidden` variables. The last of its output is kept, or goes to this process's standard error.
    """

    def __init__(
        self,
        module: str,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        hidden: Collection[str] = (),
        *,
        keeps_output: bool = True,
    ) -> None:
        self.connection, theirs = Pipe()
        self._mark = f"{os.environ.get(_MARK, '')}/{secrets.token_hex(8)}"
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if keeps_output else subprocess.DEVNULL if sys.stderr is None else 2,
            stderr=subprocess.STDOUT,
            env={**inherited, **(environment or {}), _MARK: self._mark},
            cwd=folder,
            start_new_session=True,
        )
        theirs.close()
        self._last: deque[bytes] = deque(maxlen=8)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The last of what the process printed, as plain text."""
        self._reader.join(_READ)
        return plain_text(b"".join(self._last).decode("utf-8", "replace")[-_LAST_WORDS:].strip(), 2 * _LAST_WORDS)

    def signal(self, number: signal.Signals) -> None:
        """Sends the process and its group a signal."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def how_it_ended(self) -> str:
        """How a process ended that closed its connection, as a clause. Everything that it started is ended too."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ANSWER)
        code = self._process.poll()
        self.end()
        return "closed its connection and went on" if code is None else how_it_ended(code)

    def end(self) -> None:
        """Ends the process and everything that it started."""
        self.signal(signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for _ in range(_LOOKS):
            if not (left := _marked(self._mark)):
                break
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_PAUSE)
        self.connection.close()
        self._reader.join(_READ)

    def _read(self) -> None:
        if (output := self._process.stdout) is None:
            return
        with output, suppress(OSError, ValueError):
            while said := os.read(output.fileno(), 2**12):
                self._last.append(said)


def _marked(mark: str) -> list[int]:
    """The processes that have a mark, or one that begins with it."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if any(each.startswith(wanted) for each in file.read().split(b"\0")):
                found.append(int(pid))
    return found


def serve(work: Callable[[Connection], None]) -> None:
    """Does the work of a process that `ChildProcess` has started, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one handles Ctrl-C
    end_with_parent()
    try:
        work(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        return
