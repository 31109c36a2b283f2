"""Verifying a kernel on a problem: each tensor apart, by its worst row.

A row passes where its distance from the reference is at most twice that of PyTorch's own arithmetic in the same dtype
on that row, plus a rounding floor: a few ulps of the row's spread. A global norm would pass a skipped tile at 32 K; the
worst row finds it. Outputs are poisoned with NaN before the call, so that what is not written does not pass; and with
q = 0 every weight is equal, so that exp(lse) must be the number of visible keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan, torch_dtype
from longca.manifests import Problem
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference, Rows

__all__ = [
    "Finding",
    "Verification",
    "check_backward",
    "check_counts",
    "check_forward",
    "check_lse_counts",
    "check_values",
    "lse_dtype",
]

#: Ulps of float32 (float64 for float64) that a row's spread may be off by: those of the exponent s − lse. Of standard
#: normal inputs s reaches 8 and lse 16, and half an ulp of each is 4 and 8 ulps of 1; bases are converted on top.
WIDE_ULPS = 32.0
#: Ulps of bfloat16 and float16 that it may be off by on top: those of the weights and of the result.
HALF_ULPS = 1.0
#: What lse may be off by, relative to the larger of |lse| and 1: by the tensors' precision.
LSE_LIMITS = {"wide": 2.0**-17, "half": 2.0**-13}
#: The finest that counts are held to: up to 8192 visible keys they are exact, and one part in 16 K beyond.
COUNT_LIMIT = 2.0**-14


@dataclass(frozen=True)
class Finding:
    """The worst row of one tensor.

    Attributes:
        tensor: `out`, `lse`, `counts` (lse with q = 0), `dq`, `dk` or `dv`.
        passed: Whether its error is within the limit.
        error: Its distance from the reference, relative to the larger of the row's norm and spread.
        pytorch: The same distance of PyTorch's own arithmetic; NaN where there is no such comparison.
        limit: The largest error that passes.
        token: Query (of out, lse and dq) or key (of dk and dv).
        head: Query head or KV head.
        note: What is wrong, where it is no matter of size.
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
        """The error over its limit: above 1 for one that fails."""
        if self.error == 0.0:
            return 0.0
        return self.error / self.limit if self.limit else math.inf

    def named(self, tensor: str) -> Finding:
        """The same finding, of a tensor called otherwise."""
        return replace(self, tensor=tensor)

    def __str__(self) -> str:
        if self.note:
            return f"{self.tensor}: {self.note}"
        return (
            f"{self.tensor}: error {self.error:.2g} of token {self.token}, head {self.head} "
            f"(PyTorch's own {self.pytorch:.2g}, limit {self.limit:.2g})"
        )


@dataclass(frozen=True)
class Verification:
    """What was found of all tensors of a result."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every tensor passed."""
        return all(finding.passed for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Those that did not."""
        return tuple(finding for finding in self.findings if not finding.passed)

    def __add__(self, other: Verification) -> Verification:
        return Verification(self.findings + other.findings)


def check_forward(
    kernel: Kernel, plan: Plan, inputs: Inputs, expected: Reference, *, rough_lse: bool = False
) -> tuple[Verification, Tensor, Tensor]:
    """Runs the forward into poisoned buffers and verifies out and lse.

    Args:
        kernel: The kernel.
        plan: Its plan.
        inputs: The tensors.
        expected: The reference.
        rough_lse: What the offer says of its log-sum-exp.

    Returns:
        The verification, and the kernel's out and lse, which its backward is then given.
    """
    before = inputs.clone()
    out = torch.full_like(inputs.q, torch.nan)
    tokens, heads, _ = inputs.q.shape
    lse = torch.full((heads, tokens), torch.nan, dtype=lse_dtype(inputs.q), device=inputs.q.device)
    results = kernel.forward(inputs.q, inputs.k, inputs.v, plan, out=out, lse=lse)
    findings = [*_restored(inputs, before), *_misfits(("out", "lse"), results, (out, lse))]
    if not findings:
        return check_values({"out": out, "lse": lse}, expected, rough_lse=rough_lse), out, lse
    return Verification(tuple(findings)), out, lse


def check_backward(
    kernel: Kernel, plan: Plan, inputs: Inputs, out: Tensor, lse: Tensor, expected: Reference
) -> Verification:
    """Runs the backward into poisoned buffers and verifies dq, dk and dv, each apart.

    Args:
        kernel: The kernel.
        plan: Its plan.
        inputs: The tensors.
        out: The forward's output; of a larger softmax, where `expected` is of a part.
        lse: Its log-sum-exp.
        expected: The reference.
    """
    before = inputs.clone()
    q, k, v, dout = inputs.q, inputs.k, inputs.v, inputs.dout
    buffers = tuple(torch.full_like(x, torch.nan) for x in (q, k, v))
    dq, dk, dv = buffers
    results = kernel.backward(dout, q, k, v, out.clone(), lse.clone(), plan, dq=dq, dk=dk, dv=dv)
    names = ("dq", "dk", "dv")
    findings = [*_restored(inputs, before), *_misfits(names, results, buffers)]
    if not findings:
        return check_values(dict(zip(names, buffers, strict=True)), expected)
    return Verification(tuple(findings))


def check_values(results: dict[str, Tensor], expected: Reference, *, rough_lse: bool = False) -> Verification:
    """Verifies results by their values alone: each by its worst row.

    Args:
        results: Any of `out`, `lse`, `dq`, `dk` and `dv`; but for lse in q's dtype.
        expected: The reference, which has each of them.
        rough_lse: What the offer says of its log-sum-exp.
    """
    return Verification(tuple(_value_finding(name, result, expected, rough_lse) for name, result in results.items()))


def check_counts(kernel: Kernel, plan: Plan, inputs: Inputs) -> Verification:
    """With q = 0, exp(lse) is the number of keys each query sees."""
    _, lse = kernel.forward(torch.zeros_like(inputs.q), inputs.k, inputs.v, plan)
    return check_lse_counts(lse, plan.problem)


def check_lse_counts(lse: Tensor, problem: Problem) -> Verification:
    """Verifies an lse [Hq, Tq] that was computed with q = 0: exp(lse) is the number of keys each query sees."""
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
    if rough_lse:  # a sum of rounded weights is off by no larger a share than each of them
        limit = limit + torch.finfo(dtype).eps / 2
    return _lse_finding(name, result, expected.lse, limit)


def _sampled_finding(name: str, result: Tensor, expected: Reference, rough_lse: bool) -> Finding:
    """The finding of the heads that the reference is of; the others must have been written."""
    assert expected.sample is not None
    part = expected.sample.of(name, result)
    found = _value_finding(name, part, replace(expected, sample=None), rough_lse)
    found = replace(found, head=expected.sample.indices(name)[found.head])
    written = ~result.isnan() if name == "lse" else result.isfinite()
    return found if written.all() else replace(found, passed=False, note="not every element is finite, or was written")


def lse_dtype(q: Tensor) -> torch.dtype:
    """What a log-sum-exp is in: float32, or float64 for float64 inputs."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _restored(inputs: Inputs, before: Inputs) -> list[Finding]:
    """A finding for each input that the kernel wrote to; it gets its values back."""
    findings = []
    for name in ("q", "k", "v", "dout"):
        now, then = getattr(inputs, name), getattr(before, name)
        if not torch.equal(now, then):
            findings.append(_wrong(name, "the kernel changed this input"))
            now.copy_(then)
    return findings


def _misfits(names: tuple[str, ...], results: tuple[Tensor, ...], buffers: tuple[Tensor, ...]) -> list[Finding]:
    """A finding for each result that is not the buffer given, or does not equal what is in it."""
    if len(results) != len(names):
        return [_wrong(names[0], f"the kernel returned {len(results)} tensors instead of {len(names)}")]
    findings = []
    for name, result, buffer in zip(names, results, buffers, strict=True):
        if result.shape != buffer.shape or result.dtype != buffer.dtype:
            findings.append(
                _wrong(
                    name,
                    f"{tuple(result.shape)} {result.dtype} was returned; "
                    f"{tuple(buffer.shape)} {buffer.dtype} is the contract",
                )
            )
        elif result.data_ptr() != buffer.data_ptr():
            findings.append(_wrong(name, "the buffer passed in was not filled"))
    return findings


def _wrong(tensor: str, note: str) -> Finding:
    return Finding(tensor, False, torch.inf, torch.nan, 0.0, 0, 0, note)


def _worst_row(name: str, result: Tensor, rows: Rows) -> Finding:
    """The row that is furthest beyond its limit, or nearest to it."""
    value = rows.value
    distance = (result.to(value.dtype) - value).norm(dim=-1).double()
    limit = 2 * rows.pytorch.double() + _floor(result.dtype) * rows.spread.double()
    # An exact row passes whatever its limit; NaN is beyond any.
    excess = (distance / limit).masked_fill(distance == 0, 0.0).nan_to_num(nan=torch.inf)
    token, head = divmod(int(excess.argmax()), excess.shape[1])
    scale = max(float(value[token, head].norm()), float(rows.spread[token, head]), 1e-300)
    error, own, allowed = (float(x[token, head]) / scale for x in (distance, rows.pytorch, limit))
    note = "" if result.isfinite().all() else "not every element is finite, or was written"
    return Finding(name, not note and bool(error <= allowed), error, own, allowed, token, head, note)


def _floor(dtype: torch.dtype) -> float:
    """The part of a row's spread that rounding alone may take, whatever PyTorch's own arithmetic makes of it."""
    wide = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    return WIDE_ULPS * wide + (HALF_ULPS * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0.0)


def _lse_finding(name: str, lse: Tensor, value: Tensor, limit: Tensor) -> Finding:
    """The query whose lse is furthest beyond its limit, or nearest to it; −∞ must be −∞."""
    empty = value == -torch.inf
    if lse.shape != value.shape or not torch.equal(lse == -torch.inf, empty):
        return _wrong(name, "−∞ is not exactly where a query sees nothing")
    error = (lse.to(value.dtype) - value).abs().masked_fill(empty, 0.0).nan_to_num(nan=torch.inf)
    head, token = divmod(int((error / limit).argmax()), error.shape[1])
    worst, allowed = float(error[head, token]), float(limit[head, token])
    return Finding(name, worst <= allowed, worst, torch.nan, allowed, token, head)
