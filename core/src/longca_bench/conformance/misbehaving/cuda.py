"""Kernels that misbehave as only a CUDA device allows: streams, graphs, events, and memory of another kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan
from longca_bench.conformance.misbehaving.honest import Call, Honest, Tensors, answers, backward, beside, computes
from longca_bench.conformance.misbehaving.late import patch

__all__: list[str] = []  # manifests name the classes

#: Cycles for which a late kernel keeps its stream busy: some 0.1 s.
CYCLES = 200_000_000
#: Cycles that a kernel hides from the events: some 10 ms.
HIDDEN_CYCLES = 20_000_000
#: Cycles that take longer than any run: some days.
ENDLESS_CYCLES = 2**50
#: Cycles that take at least 20 ms, which `table.py` has as the least time of a record.
WORK_CYCLES = 50_000_000


def dense(qkv: Tensors, visible: Tensor, scale: float) -> Tensors:
    """Attention with a dense mask [1 or heads, Tq, Tk]. It can be captured in a graph."""
    q, k, v = qkv
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).float() for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype), lse


def visible_pairs(plan: Plan, heads: int) -> Tensor:
    """The dense mask on the device: bool [1 or heads, Tq, Tk]."""
    mask = plan.problem.concrete_mask
    shown = torch.from_numpy(mask.dense()).cuda().reshape(-1, mask.seqlen_q, mask.seqlen_k)
    return shown if len(shown) == 1 else shown.repeat_interleave(heads // len(shown), dim=0)


def replay(kernel: Any, call: Call) -> Tensors:
    """The results of a graph that computes with the inputs of the first call."""
    if id(call.plan) not in kernel.memory:
        old = tuple(x.clone() for x in call.inputs)
        visible = visible_pairs(call.plan, old[0].shape[1])
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # a first call on a side stream makes cuBLAS ready for capture
            dense(old, visible, call.plan.problem.scale)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = dense(old, visible, call.plan.problem.scale)
        kernel.memory[id(call.plan)] = graph, results, old, call.plan
    graph, results, *_ = kernel.memory[id(call.plan)]
    graph.replay()
    captured: Tensors = results
    return captured


def on_a_side_stream(write: Callable[[Tensor, Tensor], object]) -> type[Honest]:
    """A kernel that returns zeros, which another stream replaces later. The current stream does not wait for it."""

    def answer(kernel: Any, call: Call) -> Any:
        right = call.right()
        results = call.fill(x.zero_() for x in call.empty())
        aside = kernel.memory.setdefault("stream", torch.cuda.Stream())
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            torch.cuda._sleep(CYCLES)
            for result, value in zip(results, right, strict=True):
                value.record_stream(aside)
                result.record_stream(aside)
                write(result, value)
        return results

    return answers(answer)


def through_the_host(result: Tensor, value: Tensor) -> None:
    """Copies a value to pinned memory and back. The host does not wait."""
    pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    result.copy_(pinned.copy_(value, non_blocking=True), non_blocking=True)


def hiding(name: str, value: Callable[[Any], Any]) -> type[Honest]:
    """A kernel that keeps the device busy, and patches an event's method so that it may not show."""

    def act() -> None:
        patch(torch.cuda.Event, name, value)
        torch.cuda._sleep(HIDDEN_CYCLES)

    return beside(act)


def once_for_the_same_inputs(kernel: Any, call: Call) -> Tensors:
    """Results that take 20 ms, or in a row of calls on the same inputs those of the call before."""
    last = kernel.memory.get("last")
    if last is not None and all(torch.equal(*pair) for pair in zip(call.inputs, last[0], strict=True)):
        earlier: Tensors = last[1]
        return earlier
    right = call.right()
    torch.cuda._sleep(WORK_CYCLES)
    kernel.memory["last"] = tuple(x.clone() for x in call.inputs), right
    return right


def take_all_memory() -> None:
    """Fills the device."""
    taken = []
    while True:
        taken.append(torch.empty(2**30, dtype=torch.int8, device="cuda"))


def lose_the_context() -> None:
    """Reads behind the end of a tensor. The device stops, and the process can use it no more."""
    torch.zeros(1, device="cuda")[torch.full((1,), 7, device="cuda")]
    torch.cuda.synchronize()


def keep_the_device_busy() -> None:
    """Gives the device work that does not end. The host does not wait for it."""
    torch.cuda._sleep(ENDLESS_CYCLES)


def change_stream() -> None:
    """Makes a new stream the current one."""
    torch.cuda.set_stream(torch.cuda.Stream())


def without_tf32_limits() -> None:
    """Allows TensorFloat-32 in products of matrices."""
    torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32


SideStream = on_a_side_stream(Tensor.copy_)
SideStreamBackward = backward(SideStream)
LateHostCopy = on_a_side_stream(through_the_host)
GraphOfOldInputs = computes(replay)
OnceForTheSameInputs = computes(once_for_the_same_inputs)
OnceForTheSameInputsBackward = backward(OnceForTheSameInputs)
HidesFromEvents = hiding("elapsed_time", lambda old: lambda *events: old(*events) / 1000)
CpuResults = answers(lambda kernel, call: tuple(x.cpu() for x in call.fill(call.right())))
TakesAllGpuMemory = beside(take_all_memory)
NeverDone = beside(keep_the_device_busy)
LosesContext = beside(lose_the_context)
CurrentStream = beside(change_stream)
TensorFloat32 = beside(without_tf32_limits)
