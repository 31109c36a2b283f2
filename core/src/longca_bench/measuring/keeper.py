"""The keeper: a process that starts workers and reaps them. It runs no kernel.

The judge starts it as `python -P -m longca_bench.measuring.keeper FD FOLDER JUDGE`. It imports what every worker needs,
and forks each worker from this known state, so that a worker starts within milliseconds and inherits nothing from
another one. Whatever workers start and lose becomes the keeper's child. It ends with the judge, and everything below it
ends first.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection

from longca.processes import adopt_orphans, end_all, end_with_parent, wake_without_parent
from longca_bench.measuring.cgroup import end_cgroups, join_cgroup
from longca_bench.measuring.commands import WorkerSetup
from longca_bench.measuring.worker import serve

__all__: list[str] = []

_PAUSE = 0.05  # seconds between two looks for children that ended
_MOST = 2**16


def main() -> None:
    """Serves the socket that the command line names, until its other end is closed.

    Workers get folders in FOLDER, and groups of JUDGE and this keeper where the system allows it.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    adopt_orphans()
    wake_without_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    folder, owner = sys.argv[2], f"{sys.argv[3]}-{os.getpid()}"
    ended: dict[int, int] = {}
    try:
        _follow(control, folder, owner, ended)
    finally:
        end_all((os.getpid(),))
        end_cgroups(owner)
        shutil.rmtree(folder, ignore_errors=True)


def _follow(control: socket.socket, folder: str, owner: str, ended: dict[int, int]) -> None:
    """Does what the judge asks: `("start", setup)` with two descriptors, or `("ended", pid)`."""
    control.settimeout(_PAUSE)
    while True:
        _reap(ended)
        try:
            message, fds, _, _ = socket.recv_fds(control, _MOST, 2)
        except TimeoutError:
            continue
        except OSError:
            return
        if not message:
            return
        asked, about = pickle.loads(message)  # the judge wrote it
        if asked == "start":
            answer: int | None = _start(control, folder, owner, about, fds)
        else:
            _reap(ended)
            answer = ended.get(about)
        control.sendall(json.dumps(answer).encode())


def _start(control: socket.socket, folder: str, owner: str, setup: WorkerSetup, fds: list[int]) -> int:
    """Forks a worker, and returns its number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            control.close()
            join_cgroup(owner)
            _be_worker(folder, setup, *fds)
            code = 0
        except BaseException:
            traceback.print_exc()  # the worker's last words
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
    return pid


def _be_worker(folder: str, setup: WorkerSetup, fd: int, words: int) -> None:
    """Takes a session, a folder and an output of its own, and serves the judge."""
    os.setsid()
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for there, here in ((nothing, 0), (words, 1), (words, 2)):
        os.dup2(there, here)
    os.close(nothing)
    os.close(words)
    os.chdir(_new_folder(folder))
    serve(Connection(fd), setup)


def _new_folder(folder: str) -> str:
    """A new folder in the workers' folder, which an earlier worker may have removed, closed or replaced by a file."""
    if not os.path.isdir(folder):
        with suppress(FileNotFoundError):
            os.unlink(folder)  # a file, or a link to nowhere
        os.mkdir(folder, 0o700)
    os.chmod(folder, 0o700)
    return tempfile.mkdtemp(dir=folder)


def _reap(ended: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])


if __name__ == "__main__":
    main()
