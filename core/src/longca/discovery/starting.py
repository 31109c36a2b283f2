"""Starting and ending processes of plugins: forks of a light process, or new ones.

A fork takes some milliseconds, and a new process a third of a second.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from longca.discovery import hook_host
from longca.import_path import import_path, safe_environment, safe_python
from longca.processes import end_all

__all__ = ["Process", "end", "how_it_ended", "start"]


class _Forked:
    """A forked process, with the part of a `subprocess.Popen` that is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        """Waits for the end."""
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # another part of the program waited for it
                pid, status = self.pid, 0
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status


#: A process that was started.
Process = _Forked | subprocess.Popen[bytes]


def start(theirs: socket.socket, output: int, arguments: tuple[Any, ...]) -> Process:
    """Starts a process in a group of its own.

    Args:
        theirs: The process's end of its connection to this one.
        output: Descriptor for its standard output and error.
        arguments: The further arguments of `hook_host.serve`.

    Raises:
        OSError: No process can be started.
    """
    # A fork copies one thread, and a library such as torch may wait for others.
    light = sys.platform == "linux" and "torch" not in sys.modules and threading.active_count() == 1
    return _fork(theirs, output, arguments) if light else _spawn(theirs, output, arguments)


def _fork(theirs: socket.socket, output: int, arguments: tuple[Any, ...]) -> _Forked:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.environ.update(safe_environment())
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, target in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(number, target)
            # Objects of this process still own their descriptors, so these stay open, on nothing.
            for number in map(int, os.listdir("/proc/self/fd")):
                if number > 2 and number != theirs.fileno():
                    os.dup2(nothing, number)
            hook_host.serve(theirs, *arguments)
        finally:
            os._exit(1)
    return _Forked(pid)


def _spawn(theirs: socket.socket, output: int, arguments: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        safe_python("-m", hook_host.__name__, str(theirs.fileno()), *map(str, arguments)),
        env={**safe_environment(), "PYTHONPATH": os.pathsep.join(import_path()), hook_host.INSIDE: "1"},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )


def end(process: Process, owner: int, connection: socket.socket, output: int) -> None:
    """Kills a process, everything below it, and every process of its group.

    Args:
        process: The process.
        owner: The process that started it. A fork of the owner must not end it.
        connection: The owner's end of the connection.
        output: The owner's end of the output.
    """
    if os.getpid() != owner:
        return
    if process.poll() is None:
        os.kill(process.pid, signal.SIGSTOP)  # it starts nothing more, and its children stay its own
        end_all((process.pid,))
        os.kill(process.pid, signal.SIGKILL)  # it may not have its group yet
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    connection.close()
    os.close(output)


def how_it_ended(status: int | None) -> str:
    """An exit status in words."""
    if status is None:
        return "closed its connection to this process"
    if status >= 0:
        return f"ended the process with status {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
