"""Kernels that do not return as others do: they raise, end or stop their process, hang, or leave processes behind."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch

from longca.kernels.base import Plan
from longca.manifests import Problem
from longca_bench.conformance.misbehaving.honest import Call, Honest, Tensors, backward, beside, computes

__all__: list[str] = []  # manifests name the classes


def raises(error: Callable[[], BaseException]) -> type[Honest]:
    """A kernel that raises a new exception in each call."""

    def results(kernel: Any, call: Call) -> NoReturn:
        raise error()

    return computes(results)


class Bare(BaseException):
    """An exception that `except Exception` misses."""


class UnprintableError(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("this error has no text")

    __repr__ = __str__


class ExitsWhenPrintedError(Exception):
    """An exception whose text ends the process."""

    def __str__(self) -> str:
        os._exit(0)


class UnpicklableError(Exception):
    """An exception that holds a lock."""

    def __init__(self) -> None:
        super().__init__("it holds a lock", threading.Lock())


class HangsInPlan(Honest):
    """Never plans."""

    def plan(self, problem: Problem) -> Plan:
        """Waits."""
        hang()


class RaisesInPlan(Honest):
    """Raises when it plans."""

    def plan(self, problem: Problem) -> Plan:
        """Raises."""
        raise Bare("no plan")


def hang() -> NoReturn:
    """Sleeps forever."""
    while True:
        time.sleep(60)


def spin() -> NoReturn:
    """Computes nothing forever."""
    while True:
        pass


def hang_whatever() -> NoReturn:
    """Sleeps forever, and heeds no signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    hang()


def recurse() -> None:
    """Calls itself until Python stops it."""
    recurse()


def take_all_memory() -> None:
    """Asks for 2⁵⁰ bytes."""
    torch.empty(2**50, dtype=torch.int8)


def hang_later(kernel: Any, call: Call) -> Tensors:
    """Right results of five calls. The sixth one hangs."""
    if kernel.calls > 5:
        hang()
    return call.right()


def garbage_everywhere() -> None:
    """Writes to each open file descriptor."""
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_blocking(int(name), False)
            os.write(int(name), b'{"status": "ok"}\n\x00\xff' * 9)
        except OSError:
            continue


def send_half_an_answer() -> None:
    """Writes the length of an answer and its first byte to each socket of its process, and then sleeps forever."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.write(int(name), (256).to_bytes(4, "big") + b"{")
    hang()


def cut_shared_memory() -> None:
    """Sets the size of each shared file that a process above its own has open to 0."""
    pid = os.getppid()
    while pid > 1:
        for name in _open_files(pid):
            with suppress(FileNotFoundError):
                if os.readlink(name).startswith("/memfd:longca"):
                    os.truncate(name, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])


def _open_files(pid: int) -> list[str]:
    """The paths of a process's open files in /proc. Empty for a process of another user."""
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def fork_a_slow_copy() -> None:
    """Forks. Both processes go on, the copy so late that another call has the places of the results."""
    if os.fork() == 0:
        time.sleep(0.02)


def leave_no_descriptor() -> None:
    """Takes every descriptor of a file away from what its process opens later."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def leave_a_daemon() -> None:
    """Starts a process in a session of its own that stays for a day."""
    subprocess.Popen(["sleep", "86397"], start_new_session=True)


def leave_a_stopped_daemon() -> None:
    """Starts a process that is stopped, so that it heeds no signal but SIGKILL."""
    code = "import os, signal; os.setsid(); os.kill(os.getpid(), signal.SIGSTOP)"
    subprocess.Popen([sys.executable, "-S", "-c", code, "86396"])


def much_output() -> None:
    """Prints 100 MB."""
    for _ in range(100):
        print("x" * 10**6)  # noqa: T201


# It raises.
Raises = raises(lambda: RuntimeError("no such tile"))
RaisesBackward = backward(Raises)
RaisesBare = raises(lambda: Bare("not an Exception"))
RaisesSystemExit = raises(lambda: SystemExit(0))
RaisesInterrupt = raises(KeyboardInterrupt)
RaisesGeneratorExit = raises(GeneratorExit)
RaisesStopIteration = raises(StopIteration)
RaisesEof = raises(lambda: EOFError("the other end is closed"))
RaisesGroup = raises(lambda: BaseExceptionGroup("two", [Bare("first"), SystemExit(0)]))
RaisesUnprintable = raises(UnprintableError)
RaisesExitsWhenPrinted = raises(ExitsWhenPrintedError)
#: As PyTorch and FlashInfer raise what a build prints.
RaisesOfCompiler = raises(
    lambda: RuntimeError(
        'Ninja build failed. Ninja output:\n[1/2] nvcc -c tile.cu\ntile.cu(7): error: identifier "tile" is unknown\n'
        + "ptxas info: 0 bytes gmem\n" * 200_000
    )
)
RaisesLongMessage = raises(lambda: ValueError("long " * 2_000_000))
RaisesEscapes = raises(lambda: ValueError("\x1b[2Jgone\r\x00\n\u2028 \ud800"))
RaisesUnpicklable = raises(UnpicklableError)
RaisesOddName = raises(lambda: type("\x1b[31mRed\nName", (Exception,), {})("odd"))
RaisesMemoryError = raises(lambda: MemoryError("no memory for the tile"))
Recurses = beside(recurse)
TakesAllMemory = beside(take_all_memory)

# Its process ends.
Exits = beside(lambda: os._exit(0))
ExitsWith3 = beside(lambda: os._exit(3))
ExitsBackward = backward(Exits)
Aborts = beside(os.abort)
Segfaults = beside(lambda: ctypes.string_at(0))
KillsItself = beside(lambda: os.kill(os.getpid(), signal.SIGKILL))
TerminatesItself = beside(lambda: os.kill(os.getpid(), signal.SIGTERM))
KillsItsParent = beside(lambda: os.kill(os.getppid(), signal.SIGKILL))
ClosesFiles = beside(lambda: os.closerange(0, 4096))
WritesToAllFiles = beside(garbage_everywhere)
CutsSharedMemory = beside(cut_shared_memory)
LeavesNoDescriptor = beside(leave_no_descriptor)
Forks = beside(fork_a_slow_copy)

# It does not end.
StopsItself = beside(lambda: os.kill(os.getpid(), signal.SIGSTOP))
Spins = beside(spin)
IgnoresSignals = beside(hang_whatever)
WaitsForChild = beside(lambda: subprocess.run(["sleep", "86398"], check=True))
HangsLater = computes(hang_later)
SendsHalfAnAnswer = beside(send_half_an_answer)

# It leaves something.
LeavesDaemon = beside(leave_a_daemon)
LeavesStoppedDaemon = beside(leave_a_stopped_daemon)
PrintsMuch = beside(much_output)
