"""Verifying a kernel on a problem: checks that call the kernel, and hold its results and its conduct.

Outputs are filled with NaN before the call, so an element that the kernel does not write fails. With q = 0 every weight
is equal, so exp(lse) must be the number of visible keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.kernels.sinks import sinks_gradient
from longca.manifests import Direction
from longca_bench.measuring.results import ContractError, held
from longca_bench.verification.change import Change
from longca_bench.verification.findings import (
    CHANGED,
    Finding,
    Verification,
    check_lse_counts,
    check_values,
    findings_of,
    given_results,
    same_bits,
    wrong,
)
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.sinks import sinks_like
from longca_bench.verification.tokens import parts

__all__ = ["Means", "check_backward", "check_counts", "check_forward", "lse_dtype"]

_INPUTS = ("q", "k", "v", "dout")


@dataclass(frozen=True)
class Means:
    """How a check makes tensors and reads results.

    Attributes:
        empty: Makes a tensor of a shape and dtype, where the kernel can reach it.
        read: A result as the reference has it, by its name and the kernel's result.
        place: The place of a reference's head in the kernel's result, by the result's name.
        given: A part of an input, or of a backward's out or lse, as the kernel was given it: by the name and by indices
            of the first dimension. None keeps copies of all of them, which take as much memory.
    """

    empty: Callable[[tuple[int, ...], torch.dtype], Tensor]
    read: Callable[[str, Tensor], Tensor]
    place: Callable[[str, int], int]
    given: Callable[[str, slice], Tensor] | None = None

    @classmethod
    def here(cls, like: Tensor, change: Change | None = None) -> Means:
        """Tensors in this process, on the device of one. Results are those of changed inputs, if there is a change."""

        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        if change is None:
            return cls(empty, lambda name, result: result, lambda name, head: head)
        return cls(empty, change.undo, change.place)

    def check(self, results: Mapping[str, Tensor], expected: Reference, *, rough_lse: bool = False) -> Verification:
        """Verifies a kernel's results by their values, one after another: each is read anew, into memory of its own."""
        found = Verification(())
        for name, result in results.items():
            found += check_values({name: self.read(name, result)}, expected, rough_lse=rough_lse)
        return found.placed(self.place)


def check_forward(
    kernel: Kernel,
    plan: Plan,
    inputs: Inputs,
    expected: Reference,
    means: Means | None = None,
    *,
    rough_lse: bool = False,
    optional_lse: bool = False,
) -> tuple[Verification, Tensor, Tensor]:
    """Runs the forward into poisoned buffers, and returns findings of out and lse with the kernel's own out and lse.

    Without means everything is in this process. A kernel whose log-sum-exp is optional may give none, and then has no
    finding of it.
    """
    means, (tokens, heads, _) = means or Means.here(inputs.q), inputs.q.shape
    buffers = {
        "out": means.empty(tuple(inputs.dout.shape), inputs.q.dtype).fill_(torch.nan),
        "lse": means.empty((heads, tokens), lse_dtype(inputs.q)).fill_(torch.nan),
    }
    found = _checked(
        inputs,
        buffers,
        {},
        lambda: kernel.forward(inputs.q, inputs.k, inputs.v, plan, **buffers),
        Direction.FORWARD,
        means.given,
    )
    if not found:
        results = given_results(buffers, optional_lse=optional_lse)
        found = list(means.check(results, expected, rough_lse=rough_lse).findings)
    return Verification(tuple(found)), buffers["out"], buffers["lse"]


def check_backward(
    kernel: Kernel,
    plan: Plan,
    inputs: Inputs,
    out: Tensor,
    lse: Tensor,
    expected: Reference,
    means: Means | None = None,
) -> Verification:
    """Runs the backward into poisoned buffers and verifies dq, dk and dv, each apart, and dsinks by out and lse.

    If `expected` is of a part, out and lse are those of the whole softmax.
    """
    means, q, k, v, dout = means or Means.here(inputs.q), inputs.q, inputs.k, inputs.v, inputs.dout
    like = {"dq": q, "dk": k, "dv": v}
    buffers = {name: means.empty(tuple(x.shape), x.dtype).fill_(torch.nan) for name, x in like.items()}
    found = _checked(
        inputs,
        buffers,
        {"out": out, "lse": lse},
        lambda: kernel.backward(dout, q, k, v, out, lse, plan, **buffers),
        Direction.BACKWARD,
        means.given,
    )
    if not found and expected.problem.sinks:
        buffers["dsinks"] = sinks_gradient(dout.contiguous(), out, lse, sinks_like(q))[None, :, None]
    return Verification(tuple(found)) if found else means.check(buffers, expected)


def check_counts(kernel: Kernel, plan: Plan, inputs: Inputs, means: Means | None = None) -> Verification:
    """Verifies that with q = 0, exp(lse) is the number of keys that each query sees."""
    means = means or Means.here(inputs.q)
    nothing = means.empty(tuple(inputs.q.shape), inputs.q.dtype).zero_()
    try:
        _, lse = kernel.forward(nothing, inputs.k, inputs.v, plan)
    except ContractError as error:
        return Verification(findings_of(error))
    return check_lse_counts(means.read("lse", lse), plan.problem).placed(means.place)


def lse_dtype(q: Tensor) -> torch.dtype:
    """The dtype of a log-sum-exp: float32, or float64 for float64 inputs."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _checked(
    inputs: Inputs,
    buffers: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
    call: Callable[[], Any],
    direction: Direction,
    given: Callable[[str, slice], Tensor] | None,
) -> list[Finding]:
    """Makes a call, and returns a finding for each breach of the contract. Changed inputs get their values back.

    `merged` has a backward's out and lse, and `given` is that of `Means`.
    """
    tensors = {name: getattr(inputs, name) for name in _INPUTS} | dict(merged)
    if given is None:
        kept = {name: x.clone() for name, x in tensors.items()}

        def given(name: str, some: slice) -> Tensor:
            return kept[name][some]

    findings: list[Finding] = []
    try:
        held(direction, call(), tensors, buffers, buffers)
    except ContractError as error:
        findings = list(findings_of(error))
    changed = dict[str, Finding]()
    for name, now in tensors.items():
        for some in parts(now):
            if not same_bits(now[some], then := given(name, some)):
                changed[name] = wrong(name, CHANGED)
                now[some].copy_(then)
    return [*changed.values(), *findings]
