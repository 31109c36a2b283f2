"""Subjects of the measurement. All have the same tensors of all tokens, and each holds a rank's part in its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from peer_ranks import Ranks
from torch import Tensor

import longca
from longca.kernels.base import Kernel
from longca.manifests import Layout, Problem
from longca.parallel.meshes import rank_in
from longca_advice.fastest_layouts import place
from longca_bench.measuring.strategy_parts import equal_share
from longca_bench.suites.meshes import equal_mesh
from longca_bench.verification.inputs import Inputs

__all__ = ["FORMS", "Alone", "Case", "Form", "Subject", "Timed", "abreast", "alone", "ours"]


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


@dataclass(frozen=True)
class Form:
    """A way to hold a rank's tokens. Both functions return views if memory allows it.

    Attributes:
        of: From [T, H, D].
        back: To [T, H, D].
    """

    of: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


FORMS = {
    "THD": Form(lambda x: x, lambda x: x),
    "BTHD": Form(lambda x: x[None], lambda x: x[0]),
    "BHTD": Form(lambda x: x.transpose(0, 1).contiguous()[None], lambda x: x[0].transpose(0, 1)),
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
        place, x, of = self.places[self.case.ranks.rank], self.case.inputs, FORMS[self.form].of
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
        back = FORMS[self.form].back
        return {name: back(x.detach()) for name, x in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)}


class Alone:
    """The kernel without a strategy, on one rank's share of the heads.

    Args:
        name: `alone`, on rank 0 while the other ranks wait, or `abreast`, on all of them.
        kernel: The kernel.
        problem: The problem of the share.
        inputs: The share's tensors. None on ranks that wait.
    """

    def __init__(self, name: str, kernel: Kernel, problem: Problem, inputs: Inputs | None) -> None:
        self.name, self._kernel, self._inputs = name, kernel, inputs
        self._plan = kernel.plan(problem)

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
    """The kernel on one rank's share of the heads, on rank 0. None if heads do not divide."""
    return _by_itself("alone", case, case.ranks.rank == 0)


def abreast(case: Case) -> Alone | None:
    """The same on every rank at once, each for itself."""
    return _by_itself("abreast", case, True)


def _by_itself(name: str, case: Case, computes: bool) -> Alone | None:
    part = equal_share(case.problem, case.ranks.size)
    if part is None:
        return None
    inputs = part.inputs(case.inputs) if computes else None
    return Alone(name, longca.registry().load(case.kernel), part.problem(case.problem), inputs)


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
    placement, layout = place(registry, strategy, case.kernel, case.problem, dict(sizes))

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
