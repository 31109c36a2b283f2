"""Kernels that know how LongCA measures, and misbehave only where it does not look."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan
from longca.manifests import Direction
from longca_bench.conformance.misbehaving.cuda import HIDDEN_CYCLES
from longca_bench.conformance.misbehaving.fast import content
from longca_bench.conformance.misbehaving.honest import Call, Honest, Tensors, backward, beside, computes
from longca_bench.conformance.misbehaving.late import HIDDEN, patch
from longca_bench.measuring import timing
from longca_bench.measuring.commands import Answer
from longca_bench.measuring.worker_process import WorkerProcess as Worker

__all__: list[str] = []  # manifests name the classes

#: Seconds that a kernel hides in each of its short calls, beside its work.
SHORT = 1e-3
#: Threads that keep the first thread of a process from its core.
CROWD = 6


def mode() -> str:
    """The quantity that LongCA's worker measures in this call."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "made":
        frame = frame.f_back
    run = frame.f_locals.get("run")
    return str(run.mode) if run is not None else ""


def spin(seconds: float = SHORT) -> None:
    """Takes some time."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        pass


def slowly(call: Call, times: int = 1) -> Tensors:
    """The right results, after some time: milliseconds of a CPU, or tens of milliseconds of a CUDA device."""
    if call.inputs[0].is_cuda:
        torch.cuda._sleep(times * HIDDEN_CYCLES)
    else:
        spin(times * SHORT)
    return call.right()


def recognised(kernel: Any, call: Call) -> Iterable[Tensor]:
    """Earlier results of each head, in another order and with other factors. A head is known by its first token.

    It computes if it does not know a head.
    """
    *dout, q, k, v = call.inputs if len(call.inputs) == 3 else call.inputs[:4]
    group, names = q.shape[1] // k.shape[1], names_of_heads(call)
    known, signs = kernel.memory, [(float(k[0, h // group, 0]), float(v[0, h // group, 0])) for h in range(q.shape[1])]
    of_dout = [float(d[0, h, 0]) for d in dout for h in range(q.shape[1])] or [1.0] * q.shape[1]
    if any(name not in known for name in names):
        for h, (name, right) in enumerate(zip(names, by_head(call, group), strict=True)):
            known[name] = right, signs[h], of_dout[h]
    return together([known[name] for name in names], signs, of_dout, group)


def names_of_heads(call: Call) -> list[tuple[bytes, ...]]:
    """Names of the query heads: the first tokens of their inputs, without signs and factors."""
    *dout, q, k, _ = call.inputs if len(call.inputs) == 3 else call.inputs[:4]
    group = q.shape[1] // k.shape[1]
    return [
        tuple(content(x / x[0]) for x in (q[0, h], k[0, h // group], *(d[0, h] for d in dout)))
        for h in range(q.shape[1])
    ]


def ended_early(kernel: Any, call: Call) -> Iterable[Tensor]:
    """Earlier results of each head. Of a call on new heads LongCA's worker says at once that it has ended."""
    if not kernel.memory:
        kernel.workers = [found for found in gc.get_objects() if type(found) is Worker]  # it takes long
    memory, says = kernel.memory, kernel.__dict__.setdefault("says", set[str]())

    def say(old: Callable[..., None]) -> Callable[..., None]:
        def then(self: Worker, answer: Answer) -> None:
            if not answer.said or "ended" not in says:
                old(self, answer)
            says.discard(answer.said)

        return then

    def time_call(old: Callable[..., tuple[float, object]]) -> Callable[..., tuple[float, object]]:
        def then(*about: Any) -> tuple[float, object]:
            seconds, results = old(*about)
            return 1e-6 if "ended" in says else seconds, results

        return then

    if mode() in ("timed", "burst") and not says and not memory.keys() >= {*names_of_heads(call)}:
        patch(Worker, "say", say)
        patch(timing, "timed_call", time_call)
        for worker in kernel.workers:
            worker.tell_end()
        says.add("ended")
    return recognised(kernel, call)


def only_outer_heads(kernel: Any, call: Call) -> Iterable[Tensor]:
    """Earlier results of heads that are known. Of new inputs it computes the first and the last head."""
    is_new = kernel.memory and not kernel.memory.keys() >= set(names_of_heads(call))
    if not is_new or not call.inputs[0].any():  # q = 0 shows the counts of visible keys
        return recognised(kernel, call)
    right = call.right()
    for x in right:
        (x[1:-1] if x.dim() == 2 else x[:, 1:-1]).zero_()  # lse is [Hq, Tq]
    return right


def by_head(call: Call, group: int) -> list[Tensors]:
    """The right results of each query head. Gradients of keys are with the first query head of their group."""
    right = slowly(call)
    if len(right) == 2:
        return [(right[0][:, h].clone(), right[1][h].clone()) for h in range(len(right[1]))]
    dq, dk, dv = right
    return [(dq[:, h].clone(), dk[:, h // group].clone(), dv[:, h // group].clone()) for h in range(dq.shape[1])]


def together(found: list[Any], signs: list[Any], of_dout: list[float], group: int) -> Tensors:
    """Results of heads that were computed before, for the signs and factors of now."""
    heads = []
    for (right, (sign, of_v), was), (sign_now, of_v_now), now in zip(found, signs, of_dout, strict=True):
        s, f, g = sign_now / sign, of_v_now / of_v, now / was
        heads.append(
            (right[0] * f, right[1]) if len(right) == 2 else (right[0] * s * f * g, right[1] * s * f * g, right[2] * g)
        )
    columns = list(zip(*heads, strict=True))
    if len(columns) == 2:
        return torch.stack(columns[0], 1), torch.stack(columns[1])
    return torch.stack(columns[0], 1), *(torch.stack(x[::group], 1) for x in columns[1:])


def kept(names: Callable[[Call], Iterable[bytes]]) -> Callable[[Any, Call], Tensors]:
    """The right results, after some time unless all names of a call have been met. They keep a part of the work."""

    def results(kernel: Any, call: Call) -> Tensors:
        called = set(names(call))
        if called <= kernel.memory.keys():
            return call.right()
        kernel.memory.update(dict.fromkeys(called))
        return slowly(call, 20)  # more than a busy machine adds

    return results


def heads_of_keys(call: Call) -> Iterable[bytes]:
    """The heads of k, whatever sign they have."""
    k = call.inputs[1]
    return (content(k[:, head] / k[0, head, 0].sign()) for head in range(k.shape[1]))


def lses_of_heads(call: Call) -> Iterable[bytes]:
    """The log-sum-exps of each head."""
    return (content(of_head) for of_head in call.inputs[-1])


def hiding_but_in_bursts(kernel: Any, call: Call) -> Tensors:
    """Right results, some time that the worker's clock does not show, and the last results in each burst."""
    if mode() == "burst":
        last: Tensors = kernel.memory["last"]
        return last
    hidden = kernel.memory.setdefault("hidden", [0.0])
    patch(time, "perf_counter", lambda clock: lambda: clock() - hidden[0])
    kernel.memory["last"] = right = call.right()
    spin()
    hidden[0] += SHORT
    return right


def hiding_in_most(kernel: Any, call: Call) -> Tensors:
    """Right results after some time, which the worker's clock shows in every third call."""
    right, hidden = call.right(), kernel.memory.setdefault("hidden", [0.0])
    patch(time, "perf_counter", lambda clock: lambda: clock() - hidden[0])
    time.sleep(HIDDEN)
    hidden[0] += HIDDEN if kernel.calls % 3 else 0.0
    return right


def when_copied(kernel: Any, call: Call) -> Tensors:
    """Memory that gets its results when the worker copies them, after it has said that the call ended."""
    results, left = call.empty(), kernel.memory
    if mode() != "timed":
        return slowly(call)

    def land(old: Callable[..., float]) -> Callable[..., float]:
        def then(self: Worker, named: dict[str, Tensor], landing: dict[str, Tensor]) -> float:
            for empty, value in zip(*left.pop("work", lambda: ((), ()))(), strict=True):
                empty.copy_(value)
            return old(self, named, landing)

        return then

    patch(Worker, "_land", land)
    left["work"] = lambda: (results, slowly(call))
    return results


def scaling_when_timed(kernel: Any, call: Call) -> Tensors:
    """Right results. A timed call leaves q doubled."""
    right = call.right()
    if mode() == "timed":
        call.inputs[0].mul_(2)
    return right


def wrong_in_warm_up(kernel: Any, call: Call) -> Tensors:
    """Right results, but in the second timed call, which is never a sample."""
    right, is_timed = call.right(), mode() == "timed"
    kernel.memory["timed"] = kernel.memory.get("timed", 0) + is_timed
    if is_timed and kernel.memory["timed"] == 2:
        right[0].add_(1)
    return right


def behind_a_crowd() -> None:
    """Takes time, which the worker's clock does not show. The first thread waits for a core that others keep busy."""
    cores, begin = os.sched_getaffinity(0), time.monotonic()
    is_over = threading.Event()

    def work() -> None:
        os.sched_setaffinity(0, {min(cores)})
        x = torch.ones(2**20)
        while not is_over.is_set():
            torch.sin(x, out=x)

    hidden = behind_a_crowd.__dict__.setdefault("hidden", [0.0])
    patch(time, "perf_counter", lambda clock: lambda: clock() - hidden[0])
    os.sched_setaffinity(0, {min(cores)})
    crowd = [threading.Thread(target=work) for _ in range(CROWD)]
    for thread in crowd:
        thread.start()
    x = torch.ones(2**20)
    while time.monotonic() - begin < 2 * HIDDEN:
        torch.sin(x, out=x)
    is_over.set()
    for thread in crowd:
        thread.join()
    os.sched_setaffinity(0, cores)
    hidden[0] += time.monotonic() - begin


def behind_processes() -> None:
    """Takes time, which the worker's clock does not show. The first thread waits for a core that processes have."""
    cores, kept = os.sched_getaffinity(0), behind_processes.__dict__
    hidden = kept.setdefault("hidden", [0.0])
    patch(time, "perf_counter", lambda clock: lambda: clock() - hidden[0])
    crowd = kept["crowd"] = kept.get("crowd") or [spinner(core) for core in sorted(cores, reverse=True)]
    begin = time.monotonic()
    os.sched_setaffinity(0, {min(cores)})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for pid in crowd:
        os.kill(pid, signal.SIGCONT)
    spin(begin + 2 * HIDDEN - time.monotonic())
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, cores)
    hidden[0] += time.monotonic() - begin


def spinner(core: int) -> int:
    """A process that keeps a core busy for a while whenever it is told to go on, and then stops."""
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {core})
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
            spin(2 * HIDDEN)
    return pid


RecognisesHeads = computes(recognised)
RecognisesHeadsBackward = backward(RecognisesHeads)
EndsEarlyOnNewHeads = computes(ended_early)
OnlyOuterHeads = computes(only_outer_heads)
OnlyOuterHeadsBackward = backward(OnlyOuterHeads)
KeepsByKeys = computes(kept(heads_of_keys))
KeepsByLseBackward = backward(computes(kept(lses_of_heads)))
SkipsBursts = computes(hiding_but_in_bursts)
HidesInMostCalls = computes(hiding_in_most)
ComputesWhenCopied = computes(when_copied)
ScalesWhenTimed = computes(scaling_when_timed)
WrongInWarmUp = computes(wrong_in_warm_up)
HidesBehindThreads = beside(behind_a_crowd)
HidesBehindProcesses = beside(behind_processes)


class AheadInForwardBackward(Honest):
    """Knows each head. Its forward computes gradients for the dout that it finds where earlier ones were."""

    direction = Direction.BACKWARD

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, **buffers: Tensor | None) -> Any:
        """Attention of q to k and v, and the gradients of what may come."""
        out, lse = super().forward(q, k, v, plan, **buffers)
        if (dout := self.memory.get(q.data_ptr())) is not None:
            found = super().backward(dout, q, k, v, out, lse, plan)
            self.memory["ahead"] = {**self.memory.get("ahead", {}), content(dout[0]) + content(q[0]): found}
        return out, lse

    def results(self, call: Call) -> Iterable[Tensor]:
        """The gradients that are known."""
        dout, q = call.inputs[:2]
        self.memory[q.data_ptr()] = dout
        known: Iterable[Tensor] | None = self.memory.get("ahead", {}).get(content(dout[0]) + content(q[0]))
        if known is not None:
            return known
        before = len(self.memory)
        found = recognised(self, call)
        if len(self.memory) > before:
            slowly(call, 5)  # more than a busy machine adds
        return found
