"""Subjects of the measurement. All have the same tensors of all tokens, and each holds a rank's part in its form."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

import longca
from longca.kernels.base import Kernel
from longca.manifests import Layout, Problem
from longca.parallel.meshes import rank_in
from longca_advice.auto_layout import arrange
from longca_bench.measuring.shares import Share, by_heads, held_tokens, shares_of_all
from longca_bench.measuring.strategy_parts import equal_share
from longca_bench.ranks.world import JobWorld
from longca_bench.suites.meshes import equal_mesh
from longca_bench.verification.inputs import Inputs

__all__ = ["FORMS", "LIMIT", "Alone", "Case", "Expected", "Ranks", "Subject", "Timed", "alone", "ours"]

_T = TypeVar("_T")

#: Longer than compiling takes, and no longer: a peer that fails on some ranks alone leaves the others waiting.
_TIMEOUT = datetime.timedelta(seconds=120)
#: Relative Frobenius error above which a tensor is wrong: bfloat16 rounds by up to 2⁻⁹, and merging parts rounds again.
LIMIT = 2e-2


class Ranks(JobWorld):
    """The processes that torchrun started, in torch.distributed's default process group.

    Args:
        kind: `cuda` for NCCL, `cpu` for gloo.
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
    """The computation of every subject.

    Attributes:
        problem: The problem of all ranks together, with gradients.
        pattern: `full` or `causal`.
        inputs: The tensors of all tokens, on every rank.
        kernel: The name of LongCA's kernel.
        ranks: The ranks.
    """

    problem: Problem
    pattern: str
    inputs: Inputs
    kernel: str
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


class Timed(Protocol):
    """A forward and a backward of its result, which take turns with others."""

    name: str

    def around(self) -> AbstractContextManager[Any]:
        """The context of a turn."""

    def forward(self) -> Any:
        """The timed work, and its result for the backward."""

    def backward(self, kept: Any) -> Any:
        """The work that is timed."""


@dataclass
class Subject:
    """A strategy or a peer, made ready on this rank.

    Attributes:
        name: Its name.
        case: Its case.
        layout: Its layout.
        call: The function from this rank's q, k and v to its output, in the form.
        kind: `ours` or `peer`.
        peer_of: Our strategy that does the same. None for ours.
        form: The way to hold tokens: one of FORMS.
        within: Makes the context of a turn.
        about: Further fields of its record.
        places: Each rank's place in the layout.
    """

    name: str
    case: Case
    layout: Layout
    call: Callable[[Tensor, Tensor, Tensor], Tensor]
    kind: str = "peer"
    peer_of: str | None = None
    form: str = "BTHD"
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    about: dict[str, Any] = field(default_factory=dict)
    places: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.places = self.places or range(self.case.ranks.size)
        place, x, of = self.places[self.case.ranks.rank], self.case.inputs, FORMS[self.form][0]
        q, k, v, self._dout = (of(self.layout.shard(each, place)) for each in (x.q, x.k, x.v, x.dout))
        self._leaves = tuple(each.detach().requires_grad_() for each in (q, k, v))

    def around(self) -> AbstractContextManager[Any]:
        """The context of a turn."""
        return self.within()

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
    """The kernel without a strategy on one rank's share of the heads, on rank 0 while the other ranks wait.

    Args:
        kernel: The kernel.
        problem: The problem of the share.
        inputs: The share's tensors. None on ranks that wait.
    """

    name = "alone"

    def __init__(self, kernel: Kernel, problem: Problem, inputs: Inputs | None) -> None:
        self._kernel, self._inputs, self._plan = kernel, inputs, kernel.plan(problem)

    def around(self) -> AbstractContextManager[Any]:
        """Nothing."""
        return nullcontext()

    def forward(self) -> Any:
        """out and lse."""
        if (x := self._inputs) is None:
            return None
        return self._kernel.forward(x.q, x.k, x.v, self._plan)

    def backward(self, kept: Any) -> Any:
        """dq, dk and dv."""
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
    """A strategy of ours through `longca.attention`, on the mesh and the placement that `longca run` takes by default.

    Args:
        strategy: Its name.
        case: The case.
        transport: The way to move tensors.

    Raises:
        LongCAError: It has no layout for the case, or the kernel does not take its steps.
    """
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
    return Subject(name, case, layout, call, kind="ours", form="THD", about=about, places=places)


class Expected:
    """out, dq, dk and dv of this rank's share of the heads, by the kernel with all tokens and no strategy.

    Args:
        case: The case.
    """

    def __init__(self, case: Case) -> None:
        self._ranks = case.ranks
        self._shares = shares_of_all(case.problem, case.ranks.size)
        self._tensors = _computed(case, self._shares[case.ranks.rank])

    def errors(self, subject: Subject, results: dict[str, Tensor]) -> dict[str, float]:
        """The relative Frobenius error of each tensor over all ranks. All ranks call it.

        Args:
            subject: The subject of the results.
            results: This rank's tokens: [T, H, D] each.
        """
        return {name: self._error(name, subject, x) for name, x in results.items()}

    def _error(self, name: str, subject: Subject, mine: Tensor) -> float:
        held = held_tokens(subject.layout, subject.places)
        whole = by_heads(name, mine, held, self._shares, self._ranks)
        expected = self._tensors.get(name, whole).float()
        norms = (whole.float() - expected).norm().item() ** 2, expected.norm().item() ** 2
        off, size = map(sum, zip(*self._ranks.everyone(norms), strict=True))
        return float((off / size) ** 0.5)


def _computed(case: Case, share: Share) -> dict[str, Tensor]:
    if share.is_empty:
        return {}
    kernel = longca.registry().load(case.kernel)
    x, plan = share.inputs(case.inputs), kernel.plan(share.problem(case.problem))
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    dq, dk, dv = kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}
