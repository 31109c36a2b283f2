"""Findings: results held against their reference, each tensor apart, by its worst row.

A row passes if its distance from the reference is at most twice the distance of PyTorch's own arithmetic in the same
dtype on that row, plus a rounding floor of a few ulps of the row's spread. The worst row shows a tile that a kernel
skips at 32 K, and a global norm does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longca.kernels.base import torch_dtype
from longca.manifests import Problem
from longca.manifests.offers import DType
from longca_bench.measuring.results import ContractError
from longca_bench.verification.reference import Reference, Rows, distance
from longca_bench.verification.sinks import SINK
from longca_bench.verification.tokens import parts
from longca_bench.verification.tolerances import COUNT_LIMIT, lse_limit, rounding_floor

__all__ = [
    "CHANGED",
    "INCOMPLETE",
    "PRODUCTS",
    "RANGE_OF_FLOAT32",
    "Finding",
    "Verification",
    "check_lse_counts",
    "check_values",
    "findings_of",
    "given_results",
    "is_complete",
    "same_bits",
    "wrong",
]

#: The notes of an input, and of a result that is not complete.
CHANGED = "the kernel changed this input"
INCOMPLETE = "not every element is finite, or was written"

#: Integers by their bytes.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Finding:
    """The worst row of one tensor.

    Attributes:
        tensor: `out`, `lse`, `counts` (lse with q = 0), `dq`, `dk`, `dv` or `dsinks`.
        passed: Whether the error is within the limit.
        error: Distance from the reference, relative to the larger of the row's norm and spread.
        pytorch: The same distance of PyTorch's own arithmetic, or NaN without such a comparison.
        limit: The largest error that passes.
        token: The query of out, lse and dq, or the key of dk and dv.
        head: Query head or KV head, as the kernel got it.
        note: An error that has no size, or the limit within which a result passed.
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
        """The same finding with the place of its head in the kernel's tensors."""
        return self if self.note else replace(self, head=place(self.tensor, self.head))

    def __str__(self) -> str:
        if self.note:
            return f"{self.tensor}: {self.note}"
        return (
            f"{self.tensor}: error {self.error:.2g} of token {self.token}, head {self.head} "
            f"(PyTorch's own {self.pytorch:.2g}, limit {self.limit:.2g})"
        )


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

    @property
    def limits(self) -> tuple[str, ...]:
        """The limits within which a result is right."""
        return tuple(finding.note for finding in self.findings if finding.passed and finding.note)

    def placed(self, place: Callable[[str, int], int]) -> Verification:
        """The same findings with the places of their heads in the kernel's tensors."""
        return Verification(tuple(finding.placed(place) for finding in self.findings))

    def __add__(self, other: Verification) -> Verification:
        return Verification(self.findings + other.findings)


#: The limit of a float16 kernel that is wrong beyond it alone.
PRODUCTS = Finding("out", True, 0.0, math.nan, 0.0, 0, 0, "products of q and k are beyond float16's range, ±65504")
#: The dtype whose arithmetic sets the limits of float16 results there, where PyTorch's own in float16 overflows.
RANGE_OF_FLOAT32: DType = "bfloat16"


def wrong(tensor: str, note: str) -> Finding:
    """A finding of an error that has no size."""
    return Finding(tensor, False, torch.inf, torch.nan, 0.0, 0, 0, note)


def findings_of(error: ContractError) -> tuple[Finding, ...]:
    """A finding for each fault."""
    return tuple(wrong(name, fault) for name, fault in error.faults.items())


def check_values(results: dict[str, Tensor], expected: Reference, *, rough_lse: bool = False) -> Verification:
    """Verifies results by their values alone, each by its worst row. All but lse have q's dtype."""
    return Verification(tuple(_value_finding(name, result, expected, rough_lse) for name, result in results.items()))


def check_lse_counts(lse: Tensor, problem: Problem) -> Verification:
    """Verifies that exp(lse) is the number of keys that each query sees, for lse [Hq, Tq] of q = 0."""
    mask = problem.concrete_mask
    counts = torch.from_numpy(mask.visible_keys()).to(lse.device).double()
    counts = counts.repeat_interleave(lse.shape[0] // mask.heads, dim=0)
    limit, wanted = (0.5 / counts).clamp_min(COUNT_LIMIT), counts.log()
    if problem.sinks:
        wanted = torch.logaddexp(wanted, wanted.new_tensor(SINK))
    return Verification((_lse_finding("counts", lse, wanted, limit),))


def given_results(results: Mapping[str, Tensor], *, optional_lse: bool) -> dict[str, Tensor]:
    """The results that a kernel gave: all of them, or those beside an optional lse that is NaN everywhere."""
    lacks = optional_lse and "lse" in results and bool(results["lse"].isnan().all())
    return {name: result for name, result in results.items() if not (lacks and name == "lse")}


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal bit by bit. NaN equals NaN."""
    if first.shape != second.shape:
        return False
    first, second, words = torch.atleast_1d(first), torch.atleast_1d(second), _WORDS[first.element_size()]
    return all(
        torch.equal(first[some].contiguous().view(words), second[some].contiguous().view(words))
        for some in parts(first)
    )


def is_complete(name: str, result: Tensor) -> bool:
    """Whether every element of a result is finite, or was written if it is lse, which may be −∞."""
    return not any(
        bool((result[some].isnan() if name == "lse" else ~result[some].isfinite()).any()) for some in parts(result)
    )


def _value_finding(name: str, result: Tensor, expected: Reference, rough_lse: bool) -> Finding:
    if expected.sample is not None:
        return _sampled_finding(name, result, expected, rough_lse)
    if name != "lse":
        return _worst_row(name, result, expected.rows[name], expected.largest_lse)
    dtype, capped = torch_dtype(expected.problem.dtype), expected.problem.softcap is not None
    return _lse_finding(name, result, expected.lse, lse_limit(expected.lse, dtype, rough=rough_lse, capped=capped))


def _sampled_finding(name: str, result: Tensor, expected: Reference, rough_lse: bool) -> Finding:
    """The finding of the sampled heads. The other heads must have been written."""
    assert expected.sample is not None
    part = expected.sample.of(name, result)
    found = _value_finding(name, part, replace(expected, sample=None), rough_lse)
    found = replace(found, head=expected.sample.indices(name)[found.head])
    return found if is_complete(name, result) else replace(found, passed=False, note=INCOMPLETE)


def _worst_row(name: str, result: Tensor, rows: Rows, largest_lse: float) -> Finding:
    """The row with the largest error relative to its limit."""
    value = rows.value
    errors = distance(result, value).double()
    limit = 2 * rows.pytorch.double() + rounding_floor(result.dtype, largest_lse) * rows.spread.double()
    # An exact row passes whatever its limit; NaN is beyond any.
    excess = (errors / limit).masked_fill(errors == 0, 0.0).nan_to_num(nan=torch.inf)
    token, head = divmod(int(excess.argmax()), excess.shape[1])
    scale = max(float(value[token, head].norm()), float(rows.spread[token, head]), 1e-300)
    error, own, allowed = (float(x[token, head]) / scale for x in (errors, rows.pytorch, limit))
    passed = error <= allowed  # of a row with an element that is not finite, the error is not finite either
    note = "" if passed or is_complete(name, result) else INCOMPLETE
    return Finding(name, passed, error, own, allowed, token, head, note)


def _lse_finding(name: str, lse: Tensor, value: Tensor, limit: Tensor) -> Finding:
    """The query whose lse has the largest error relative to its limit. −∞ must be −∞."""
    empty = value == -torch.inf
    if lse.shape != value.shape or not torch.equal(lse == -torch.inf, empty):
        return wrong(name, "−∞ is not exactly where a query sees nothing")
    error = (lse.to(value.dtype) - value).abs().masked_fill(empty, 0.0).nan_to_num(nan=torch.inf)
    head, token = divmod(int((error / limit).argmax()), error.shape[1])
    worst, allowed = float(error[head, token]), float(limit[head, token])
    return Finding(name, worst <= allowed, worst, torch.nan, allowed, token, head)
