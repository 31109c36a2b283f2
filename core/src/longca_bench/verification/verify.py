"""Verifying a kernel on a problem: each tensor apart, by its worst row.

A row passes if its distance from the reference is at most twice the distance of PyTorch's own arithmetic in the same
dtype on that row, plus a rounding floor of a few ulps of the row's spread. The worst row shows a tile that a kernel
skips at 32 K, and a global norm does not. Outputs are filled with NaN before the call, so an element that the kernel
does not write fails. With q = 0 every weight is equal, so exp(lse) must be the number of visible keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan, torch_dtype
from longca.manifests import Direction, Problem
from longca_bench.measuring.results import ContractError, held
from longca_bench.verification.change import Change
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference, Rows

__all__ = [
    "CHANGED",
    "Finding",
    "Means",
    "Verification",
    "check_backward",
    "check_counts",
    "check_forward",
    "check_lse_counts",
    "check_values",
    "findings_of",
    "given_results",
    "lse_dtype",
    "same_bits",
    "wrong",
]

_INPUTS = ("q", "k", "v", "dout")
#: The note of a finding of an input.
CHANGED = "the kernel changed this input"

#: Ulps of float32 (float64 for float64) of a row's spread that an error may have, from the exponent s − lse. For
#: standard normal inputs s reaches 8 and lse 16. Half an ulp of each is 4 and 8 ulps of 1. Kernels convert bases too.
WIDE_ULPS = 32.0
#: Further ulps of bfloat16 and float16, from the weights and the result.
HALF_ULPS = 1.0
#: Largest error of lse, relative to the larger of |lse| and 1, by the tensors' precision.
LSE_LIMITS = {"wide": 2.0**-17, "half": 2.0**-13}
#: Integers by their bytes.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Finest limit of counts. Counts up to 8192 visible keys are exact, and larger ones to one part in 16 K.
COUNT_LIMIT = 2.0**-14


@dataclass(frozen=True)
class Finding:
    """The worst row of one tensor.

    Attributes:
        tensor: `out`, `lse`, `counts` (lse with q = 0), `dq`, `dk` or `dv`.
        passed: Whether the error is within the limit.
        error: Distance from the reference, relative to the larger of the row's norm and spread.
        pytorch: The same distance of PyTorch's own arithmetic, or NaN without such a comparison.
        limit: The largest error that passes.
        token: The query of out, lse and dq, or the key of dk and dv.
        head: Query head or KV head, as the kernel got it.
        note: An error that has no size.
    """

    tensor: str
    passed: bool
    error: float
    pytorch: float
    limit: float
    token: int
    head: int
    note: str = ""

    @property
    def closeness(self) -> float:
        """The error over its limit. A failure is above 1."""
        if self.error == 0.0:
            return 0.0
        return self.error / self.limit if self.limit else math.inf

    def named(self, tensor: str) -> Finding:
        """The same finding under another tensor's name."""
        return replace(self, tensor=tensor)

    def placed(self, place: Callable[[str, int], int]) -> Finding:
        """The same finding with the place of its head in the kernel's tensors, by the tensor's name and the head."""
        return self if self.note else replace(self, head=place(self.tensor, self.head))

    def __str__(self) -> str:
        if self.note:
            return f"{self.tensor}: {self.note}"
        return (
            f"{self.tensor}: error {self.error:.2g} of token {self.token}, head {self.head} "
            f"(PyTorch's own {self.pytorch:.2g}, limit {self.limit:.2g})"
        )


@dataclass(frozen=True)
class Means:
    """How a check makes tensors and reads results.

    Attributes:
        empty: Makes a tensor of a shape and dtype, where the kernel can reach it.
        clone: Copies a tensor to where the kernel can reach it.
        read: A result as the reference has it, by its name and the kernel's result.
        place: The place of a reference's head in the kernel's result, by the result's name.
    """

    empty: Callable[[tuple[int, ...], torch.dtype], Tensor]
    clone: Callable[[Tensor], Tensor]
    read: Callable[[str, Tensor], Tensor]
    place: Callable[[str, int], int]

    @classmethod
    def here(cls, like: Tensor, change: Change | None = None) -> Means:
        """Tensors in this process.

        Args:
            like: A tensor on their device.
            change: The change of the inputs. None reads results as they are.
        """
        return cls(
            lambda shape, dtype: torch.empty(shape, dtype=dtype, device=like.device),
            Tensor.clone,
            change.undo if change is not None else lambda name, result: result,
            change.place if change is not None else lambda name, head: head,
        )

    def read_all(self, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each of some results, as the reference has it."""
        return {name: self.read(name, result) for name, result in results.items()}


@dataclass(frozen=True)
class Verification:
    """The findings of all tensors of a result."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every tensor passed."""
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The findings that failed."""
        return tuple(finding for finding in self.findings if not finding.passed)

    def placed(self, place: Callable[[str, int], int]) -> Verification:
        """The same findings with the places of their heads in the kernel's tensors."""
        return Verification(tuple(finding.placed(place) for finding in self.findings))

    def __add__(self, other: Verification) -> Verification:
        return Verification(self.findings + other.findings)


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
    """Runs the forward into poisoned buffers and verifies out and lse.

    Args:
        kernel: The kernel.
        plan: Its plan.
        inputs: The tensors.
        expected: The reference.
        means: How buffers are made and results are read. None stays in this process.
        rough_lse: Whether the offer calls its log-sum-exp rough.
        optional_lse: Whether the kernel may give no log-sum-exp. Then the verification has no finding of it.

    Returns:
        The verification, and the kernel's out and lse for its backward.
    """
    means, (tokens, heads, _) = means or Means.here(inputs.q), inputs.q.shape
    buffers = {
        "out": means.empty(tuple(inputs.q.shape), inputs.q.dtype).fill_(torch.nan),
        "lse": means.empty((heads, tokens), lse_dtype(inputs.q)).fill_(torch.nan),
    }
    found = _checked(
        inputs, buffers, {}, lambda: kernel.forward(inputs.q, inputs.k, inputs.v, plan, **buffers), Direction.FORWARD
    )
    if not found:
        results = given_results(means.read_all(buffers), optional_lse=optional_lse)
        found = list(check_values(results, expected, rough_lse=rough_lse).placed(means.place).findings)
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
    """Runs the backward into poisoned buffers and verifies dq, dk and dv, each apart.

    Args:
        kernel: The kernel.
        plan: Its plan.
        inputs: The tensors.
        out: The forward's output. If `expected` is of a part, it is the output of the whole softmax.
        lse: The log-sum-exp of the output.
        expected: The reference.
        means: How buffers are made and results are read. None stays in this process.
    """
    means, q, k, v, dout = means or Means.here(inputs.q), inputs.q, inputs.k, inputs.v, inputs.dout
    like = {"dq": q, "dk": k, "dv": v}
    buffers = {name: means.empty(tuple(x.shape), x.dtype).fill_(torch.nan) for name, x in like.items()}
    given = {"out": means.clone(out), "lse": means.clone(lse)}
    found = _checked(
        inputs,
        buffers,
        given,
        lambda: kernel.backward(dout, q, k, v, given["out"], given["lse"], plan, **buffers),
        Direction.BACKWARD,
    )
    if found:
        return Verification(tuple(found))
    return check_values(means.read_all(buffers), expected).placed(means.place)


def given_results(results: Mapping[str, Tensor], *, optional_lse: bool) -> dict[str, Tensor]:
    """The results that a kernel gave: all of them, or those besides an optional lse that is NaN everywhere."""
    lacks = optional_lse and "lse" in results and bool(results["lse"].isnan().all())
    return {name: result for name, result in results.items() if not (lacks and name == "lse")}


def check_values(results: dict[str, Tensor], expected: Reference, *, rough_lse: bool = False) -> Verification:
    """Verifies results by their values alone, each by its worst row.

    Args:
        results: Any of `out`, `lse`, `dq`, `dk` and `dv`. All but lse have q's dtype.
        expected: The reference, which has each of them.
        rough_lse: Whether the offer calls its log-sum-exp rough.
    """
    return Verification(tuple(_value_finding(name, result, expected, rough_lse) for name, result in results.items()))


def check_counts(kernel: Kernel, plan: Plan, inputs: Inputs, means: Means | None = None) -> Verification:
    """Verifies that with q = 0, exp(lse) is the number of keys that each query sees."""
    means = means or Means.here(inputs.q)
    nothing = means.empty(tuple(inputs.q.shape), inputs.q.dtype).zero_()
    try:
        _, lse = kernel.forward(nothing, inputs.k, inputs.v, plan)
    except ContractError as error:
        return Verification(findings_of(error))
    return check_lse_counts(means.read("lse", lse), plan.problem).placed(means.place)


def check_lse_counts(lse: Tensor, problem: Problem) -> Verification:
    """Verifies that exp(lse) is the number of keys that each query sees, for lse [Hq, Tq] of q = 0."""
    mask = problem.concrete_mask
    counts = torch.from_numpy(mask.visible_keys()).to(lse.device).double()
    counts = counts.repeat_interleave(lse.shape[0] // mask.heads, dim=0)
    limit = (0.5 / counts).clamp_min(COUNT_LIMIT)
    return Verification((_lse_finding("counts", lse, counts.log(), limit),))


def _value_finding(name: str, result: Tensor, expected: Reference, rough_lse: bool) -> Finding:
    if expected.sample is not None:
        return _sampled_finding(name, result, expected, rough_lse)
    if name != "lse":
        return _worst_row(name, result, expected.rows[name])
    dtype = torch_dtype(expected.problem.dtype)
    limit = LSE_LIMITS["half" if dtype.itemsize == 2 else "wide"] * expected.lse.abs().clamp_min(1.0)
    if rough_lse:  # a sum of rounded weights has no larger relative error than each weight
        limit = limit + torch.finfo(dtype).eps / 2
    return _lse_finding(name, result, expected.lse, limit)


def _sampled_finding(name: str, result: Tensor, expected: Reference, rough_lse: bool) -> Finding:
    """The finding of the sampled heads. The other heads must have been written."""
    assert expected.sample is not None
    part = expected.sample.of(name, result)
    found = _value_finding(name, part, replace(expected, sample=None), rough_lse)
    found = replace(found, head=expected.sample.indices(name)[found.head])
    written = ~result.isnan() if name == "lse" else result.isfinite()
    return found if written.all() else replace(found, passed=False, note="not every element is finite, or was written")


def lse_dtype(q: Tensor) -> torch.dtype:
    """The dtype of a log-sum-exp: float32, or float64 for float64 inputs."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _restored(inputs: Inputs, before: Inputs) -> list[Finding]:
    """A finding for each input that the kernel changed. The input gets its values back."""
    findings = []
    for name in _INPUTS:
        now, then = getattr(inputs, name), getattr(before, name)
        if not same_bits(now, then):
            findings.append(wrong(name, CHANGED))
            now.copy_(then)
    return findings


def _checked(
    inputs: Inputs,
    buffers: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    call: Callable[[], Any],
    direction: Direction,
) -> list[Finding]:
    """Makes a call, and returns a finding for each breach of the contract."""
    before, kept = inputs.clone(), {name: x.clone() for name, x in given.items()}
    tensors = {name: getattr(inputs, name) for name in _INPUTS} | dict(given)
    findings: list[Finding] = []
    try:
        held(direction, call(), tensors, buffers, buffers)
    except ContractError as error:
        findings = list(findings_of(error))
    changed = [name for name, x in given.items() if not same_bits(x, kept[name])]
    return [*_restored(inputs, before), *(wrong(name, CHANGED) for name in changed), *findings]


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal bit by bit. NaN equals NaN."""
    words = _WORDS[first.element_size()]
    return torch.equal(first.contiguous().view(words), second.contiguous().view(words))


def findings_of(error: ContractError) -> tuple[Finding, ...]:
    """A finding for each fault."""
    return tuple(wrong(name, fault) for name, fault in error.faults.items())


def wrong(tensor: str, note: str) -> Finding:
    """A finding of an error that has no size."""
    return Finding(tensor, False, torch.inf, torch.nan, 0.0, 0, 0, note)


def _worst_row(name: str, result: Tensor, rows: Rows) -> Finding:
    """The row with the largest error relative to its limit."""
    value = rows.value
    distance = (result.to(value.dtype) - value).norm(dim=-1).double()
    limit = 2 * rows.pytorch.double() + _floor(result.dtype) * rows.spread.double()
    # An exact row passes whatever its limit; NaN is beyond any.
    excess = (distance / limit).masked_fill(distance == 0, 0.0).nan_to_num(nan=torch.inf)
    token, head = divmod(int(excess.argmax()), excess.shape[1])
    scale = max(float(value[token, head].norm()), float(rows.spread[token, head]), 1e-300)
    error, own, allowed = (float(x[token, head]) / scale for x in (distance, rows.pytorch, limit))
    passed = error <= allowed  # of a row with an element that is not finite, the error is not finite either
    note = "" if passed or result.isfinite().all() else "not every element is finite, or was written"
    return Finding(name, passed, error, own, allowed, token, head, note)


def _floor(dtype: torch.dtype) -> float:
    """The part of a row's spread that rounding alone may take."""
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    return WIDE_ULPS * wide + (HALF_ULPS * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0)


def _lse_finding(name: str, lse: Tensor, value: Tensor, limit: Tensor) -> Finding:
    """The query whose lse has the largest error relative to its limit. −∞ must be −∞."""
    empty = value == -torch.inf
    if lse.shape != value.shape or not torch.equal(lse == -torch.inf, empty):
        return wrong(name, "−∞ is not exactly where a query sees nothing")
    error = (lse.to(value.dtype) - value).abs().masked_fill(empty, 0.0).nan_to_num(nan=torch.inf)
    head, token = divmod(int((error / limit).argmax()), error.shape[1])
    worst, allowed = float(error[head, token]), float(limit[head, token])
    return Finding(name, worst <= allowed, worst, torch.nan, allowed, token, head)
