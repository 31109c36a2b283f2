"""Kernels that return before they are done, and kernels that change the clocks and the checks of their process."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from longca.manifests import Problem
from longca.masks import SliceMask
from longca_bench.conformance.misbehaving.honest import Call, Honest, Tensors, answers, backward, beside, computes
from longca_bench.measuring import timing
from longca_bench.measuring.commands import Answer
from longca_bench.measuring.worker_process import WorkerProcess as Worker

__all__: list[str] = []  # manifests name the classes

#: Seconds after which a late kernel writes.
LATE = 0.3
#: Seconds that a kernel hides from its clocks. `table.py` has them as the least time of a record.
HIDDEN = 0.02


def patch(owner: Any, name: str, value: Callable[[Any], Any]) -> None:
    """Replaces an attribute, also where a module imported it. It stays replaced.

    Args:
        owner: The module or the class.
        name: The attribute.
        value: Makes the new value from the old one.
    """
    old = getattr(owner, name)
    if getattr(old, "is_patched", False):
        return
    new = value(old)
    new.is_patched = True
    setattr(owner, name, new)
    for module in list(sys.modules.values()):
        for key, found in list(getattr(module, "__dict__", {}).items()):
            if found is old:
                setattr(module, key, new)


def patching(owner: Any, name: str, value: Callable[[Any], Any]) -> type[Honest]:
    """A kernel that returns zeros, and patches a check so that it may not show."""

    def results(kernel: Any, call: Call) -> Iterable[Tensor]:
        patch(owner, name, value)
        return [x.zero_() for x in call.empty()]

    return computes(results)


def hiding(*clocks: str) -> type[Honest]:
    """A kernel that sleeps, and sets clocks of the module `time` back by as much."""
    hidden = [0.0]

    def slower(clock: Callable[[], float]) -> Callable[[], float]:
        unit = 1e9 if "_ns" in clock.__name__ else 1
        return lambda: type(clock())(clock() - hidden[0] * unit)

    def act() -> None:
        for name in clocks:
            patch(time, name, slower)
        time.sleep(HIDDEN)
        hidden[0] += HIDDEN

    return beside(act)


def stop_the_clock() -> None:
    """Makes the clock of samples stand still."""
    patch(time, "perf_counter", lambda old: lambda now=old(): now)
    time.sleep(HIDDEN)


def sleep_unseen() -> None:
    """Sleeps, and makes each median a nanosecond."""
    patch(statistics, "median", lambda old: lambda data: 1e-9)
    time.sleep(HIDDEN)


def slow_with_fast_timer() -> None:
    """Sleeps, and makes LongCA's own timer say a hundredth."""
    patch(timing, "timed_call", lambda old: lambda *x: ((timed := old(*x))[0] / 100, timed[1]))
    time.sleep(HIDDEN)


def end_before_it_begins(kernel: Any, call: Call) -> Tensors:
    """Makes LongCA's worker say that the call has ended, and computes then."""
    say = getattr(Worker.say, "old", Worker.say)
    for worker in [found for found in gc.get_objects() if type(found) is Worker]:
        say(worker, Answer(said="ended"))
    patch(Worker, "say", lambda old: lambda self, answer: None if answer.said == "ended" else say(self, answer))
    Worker.say.old = say  # type: ignore[attr-defined]
    time.sleep(HIDDEN)
    return call.right()


def by_a_thread(kernel: Any, call: Call) -> Any:
    """Zeros, which a thread replaces later."""
    results = call.fill(x.zero_() for x in call.empty())

    def write() -> None:
        time.sleep(LATE)
        for result, right in zip(results, call.right(), strict=True):
            result.copy_(right)

    threading.Thread(target=write).start()
    return results


def by_a_process(kernel: Any, call: Call) -> Any:
    """Zeros, which a process replaces later if their memory is shared."""
    right = call.right()
    results = call.fill(x.zero_().share_memory_() for x in call.empty())
    if os.fork() == 0:
        time.sleep(LATE)
        for result, value in zip(results, right, strict=True):
            result.copy_(value)
        os._exit(0)
    return results


def from_the_reference(kernel: Any, call: Call) -> Tensors:
    """The harness's own reference, if it is in this process, and else zeros."""
    results = tuple(x.zero_() for x in call.empty())
    for found in gc.get_objects():
        if type(found).__name__ == "Reference" and (rows := getattr(found, "rows", {}).get("out")) is not None:
            for result, value in zip(results, (rows.value, found.lse), strict=True):
                if result.shape == value.shape:
                    result.copy_(value)
    return results


def no_failures() -> type[Honest]:
    """A kernel that returns zeros, and patches LongCA's own verification."""
    from longca_bench.verification.findings import Verification

    def results(kernel: Any, call: Call) -> Iterable[Tensor]:
        Verification.passed = property(lambda self: True)  # type: ignore[method-assign, assignment]
        Verification.failures = property(lambda self: ())  # type: ignore[method-assign, assignment]
        return [x.zero_() for x in call.empty()]

    return computes(results)


def enlarge_work() -> None:
    """Makes the work of each problem larger, and gives all masks one digest."""
    for owner, names in ((SliceMask, ("area", "density", "digest")), (Problem, ("area", "flops"))):
        for name in names:
            setattr(owner, name, property(lambda self: 10**15))


LateThread = answers(by_a_thread)
LateThreadBackward = backward(LateThread)
LateProcess = answers(by_a_process)
CopiesReference = computes(from_the_reference)

HidesFromPerfCounter = hiding("perf_counter", "perf_counter_ns")
HidesFromMonotonic = hiding("monotonic", "monotonic_ns")
HidesFromAllClocks = hiding("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")
StopsPerfCounter = beside(stop_the_clock)
PatchesTimer = beside(slow_with_fast_timer)
EndsBeforeItBegins = computes(end_before_it_begins)
PatchesMedian = beside(sleep_unseen)

PatchesWork = beside(enlarge_work)
PatchesVerification = no_failures()
PatchesEqual = patching(torch, "equal", lambda old: lambda *x: True)
PatchesAllclose = patching(torch, "allclose", lambda old: lambda *x, **options: True)
PatchesNorm = patching(Tensor, "norm", lambda old: lambda x, *a, **options: old(x, *a, **options) * 0)
PatchesIsfinite = patching(Tensor, "isfinite", lambda old: lambda x: torch.ones_like(x, dtype=torch.bool))
PatchesSubtraction = patching(Tensor, "__sub__", lambda old: lambda x, y: torch.zeros_like(x))
