"""Subjects of the measurement. All have the same tensors of all tokens, and each holds a rank's part in its form."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

import longca
from longca.kernels.base import Kernel
from longca.manifests import Layout, Problem
from longca.parallel.meshes import rank_in
from longca_advice.auto_layout import arrange
from longca_bench.measuring.strategy_parts import equal_share
from longca_bench.ranks.world import JobWorld
from longca_bench.suites.meshes import equal_mesh
from longca_bench.verification.inputs import Inputs

__all__ = ["FORMS", "LIMIT", "Alone", "Case", "Expected", "Ranks", "Subject", "alone", "ours"]

_T = TypeVar("_T")

#: Longer than compiling takes, and no longer: a peer that fails on some ranks alone leaves the others waiting.
_TIMEOUT = datetime.timedelta(seconds=120)
#: Relative Frobenius error above which a tensor is wrong: bfloat16 rounds by up to 2⁻⁹, and merging parts rounds again.
LIMIT = 2e-2


class Ranks(JobWorld):
    """The processes that torchrun started, in torch.distributed's default process group: NCCL's on `cuda`, gloo's on
    `cpu`.
    """

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind)
        if kind == "cuda":
            self.device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=_TIMEOUT)
        self._join(timeout=_TIMEOUT)

    def attempt(self, call: Callable[[], _T]) -> tuple[_T | None, str | None]:
        """What a call returns, and why it failed on the first rank on which it did; None where it failed on none."""
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # whatever a peer raises is its result
            failure = f"{type(error).__name__}: {error}"
        failures = [text for text in self.everyone(failure) if text is not None]
        return (None, failures[0]) if failures else (result, None)


@dataclass(frozen=True)
class Case:
    """The computation of every subject."""

    problem: Problem  # of all ranks together, with gradients
    pattern: str  # `full` or `causal`
    inputs: Inputs  # of all tokens, on every rank
    kernel: str  # LongCA's
    ranks: Ranks

    @property
    def causal(self) -> bool:
        """Whether the mask is causal."""
        return self.pattern == "causal"

    def layout(self, strategy: str, axis_sizes: dict[str, int], placement: str) -> Layout:
        """A layout of ours, for a peer that holds tokens as it says."""
        return longca.registry().layout(strategy, self.problem, axis_sizes, placement)


#: The forms of a rank's tokens: the functions from [T, H, D] and back.
FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "THD": (lambda x: x, lambda x: x),
    "BTHD": (lambda x: x[None], lambda x: x[0]),
    "BHTD": (lambda x: x.transpose(0, 1).contiguous()[None], lambda x: x[0].transpose(0, 1)),
}


@dataclass
class Subject:
    """A strategy or a peer, made ready on this rank."""

    name: str
    case: Case
    layout: Layout
    call: Callable[[Tensor, Tensor, Tensor], Tensor]  # from this rank's q, k and v to its output, in the form
    peer_of: str | None = None  # our strategy that does the same
    form: str = "BTHD"  # one of FORMS
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # the context of a turn
    about: dict[str, Any] = field(default_factory=dict)  # further fields of its record
    places: Sequence[int] = ()  # each rank's place in the layout

    def __post_init__(self) -> None:
        self.places = self.places or range(self.case.ranks.size)
        place, x, of = self.places[self.case.ranks.rank], self.case.inputs, FORMS[self.form][0]
        q, k, v, self._dout = (of(self.layout.shard(each, place)) for each in (x.q, x.k, x.v, x.dout))
        self._leaves = tuple(each.detach().requires_grad_() for each in (q, k, v))

    def forward(self) -> Tensor:
        """This rank's output, in the form, and with it the graph."""
        return self.call(*self._leaves)

    def backward(self, kept: Tensor) -> tuple[Tensor, ...]:
        """Gradients of this rank's q, k and v, in the form. The graph stays."""
        return torch.autograd.grad(kept, self._leaves, self._dout, retain_graph=True)

    def results(self) -> dict[str, Tensor]:
        """This rank's out, dq, dk and dv, each [T, H, D]."""
        with self.around():
            out = self.forward()
            grads = self.backward(out)
        back = FORMS[self.form][1]
        return {name: back(x.detach()) for name, x in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)}


class Alone:
    """The kernel without a strategy on one rank's share of the heads, on rank 0 while the other ranks wait."""

    around = nullcontext

    def __init__(self, kernel: Kernel, problem: Problem, inputs: Inputs | None) -> None:
        self._kernel, self._inputs, self._plan = kernel, inputs, kernel.plan(problem)

    def forward(self) -> Any:
        """out and lse. None on ranks that wait."""
        x = self._inputs
        return None if x is None else self._kernel.forward(x.q, x.k, x.v, self._plan)

    def backward(self, kept: Any) -> Any:
        """dq, dk and dv. None on ranks that wait."""
        if (x := self._inputs) is None:
            return None
        out, lse = kept
        return self._kernel.backward(x.dout, x.q, x.k, x.v, out, lse, self._plan)


def alone(case: Case) -> Alone | None:
    """The kernel on one rank's share of the heads. None if heads do not divide."""
    part = equal_share(case.problem, case.ranks.size)
    if part is None:
        return None
    inputs = None if case.ranks.rank else part.inputs(case.inputs)
    return Alone(longca.registry().load(case.kernel), part.problem(case.problem), inputs)


def ours(strategy: str, case: Case, transport: str = "auto") -> Subject:
    """A strategy of ours through `longca.attention`, on the mesh and the placement of `longca run`."""
    registry, ranks, mask = longca.registry(), case.ranks, case.problem.concrete_mask
    axes = registry.strategy(strategy).axes
    sizes = tuple(zip(axes, equal_mesh(ranks.size, len(axes)), strict=True))
    mesh = ranks.mesh(sizes)
    placement = arrange(registry, [(case.problem, 1.0)], {strategy: dict(sizes)}, case.kernel).placement
    layout = registry.layout(strategy, case.problem, dict(sizes), placement)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shared: dict[str, Any] = {"strategy": strategy, "mesh": mesh, "placement": layout, "transport": transport}
        out = longca.attention(q, k, v, mask, kernel=case.kernel, **shared)
        assert isinstance(out, Tensor)
        return out

    sized = ",".join(f"{axis}={size}" for axis, size in sizes)
    about = {"strategy": strategy, "transport": transport, "placement": placement, "mesh": sized}
    places = ranks.everyone(rank_in(mesh, axes))
    name = strategy if transport == "auto" else f"{strategy} by {transport}"
    return Subject(name, case, layout, call, form="THD", about=about, places=places)


class Expected:
    """out, dq, dk and dv of all tokens, by the kernel without a strategy, on every rank."""

    def __init__(self, case: Case) -> None:
        kernel, x, self._ranks = longca.registry().load(case.kernel), case.inputs, case.ranks
        plan = kernel.plan(case.problem)
        out, lse = kernel.forward(x.q, x.k, x.v, plan)
        gradients = kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)
        self._tensors = dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True))

    def errors(self, subject: Subject, results: dict[str, Tensor]) -> dict[str, float]:
        """The relative Frobenius error of each tensor over all ranks, given this rank's tokens [T, H, D].

        All ranks call it.
        """
        place = subject.places[self._ranks.rank]
        return {name: self._error(subject.layout.shard(self._tensors[name], place), x) for name, x in results.items()}

    def _error(self, expected: Tensor, mine: Tensor) -> float:
        expected = expected.float()
        norms = (mine.float() - expected).norm().item() ** 2, expected.norm().item() ** 2
        off, size = map(sum, zip(*self._ranks.everyone(norms), strict=True))
        return float((off / size) ** 0.5)
