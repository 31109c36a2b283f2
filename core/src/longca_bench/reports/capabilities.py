"""Capabilities: for every kernel and mask pattern, whether it runs here, and if not, what keeps it from it.

What a question leaves open (data type, heads, head dimension) counts in the kernel's favour: where the usual value
does not do, the others are tried, and the cell says which one did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from longca.manifests import Device, KernelManifest, Problem, Verdict
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Pattern
from longca.plugins import Registry

__all__ = ["GQA", "HEAD_DIM", "MHA", "Cell", "Question", "Status", "examine"]

GQA, MHA = (64, 8), (8, 8)
HEAD_DIM, OTHER_HEAD_DIM = 128, 64
_DTYPES: tuple[DType, ...] = ("bfloat16", "float16", "float32", "float64")


class Status(StrEnum):
    """How far a kernel is from running a problem; the first is nearest."""

    HERE = "here"
    """It runs on the device, as installed."""
    PACKAGE = "package"
    """A package is missing."""
    DEVICE = "device"
    """It runs on other devices."""
    OPTIONS = "options"
    """It takes the pattern, but not with the heads, data type or head dimension asked."""
    NONE = "none"
    """It does not take the pattern, or not in this direction."""

    @property
    def distance(self) -> int:
        """Its place in the order."""
        return list(Status).index(self)


@dataclass(frozen=True)
class Question:
    """What is asked of every kernel and pattern; None leaves a value open.

    Attributes:
        device: Where it would run.
        dtype: Data type.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
    """

    device: Device
    dtype: DType | None = None
    heads: tuple[int, int] | None = None
    head_dim: int | None = None

    def describe(self) -> str:
        """All but the device, in a few words."""
        heads = f"{self.heads[0]}:{self.heads[1]} heads" if self.heads else "heads 64:8, else 8:8"
        dim = (
            f"head dimension {self.head_dim}" if self.head_dim else f"head dimension {HEAD_DIM}, else {OTHER_HEAD_DIM}"
        )
        return f"{self.dtype or 'bfloat16, else any dtype'}; {heads}; {dim}"

    def problem(self, pattern: Pattern, direction: Direction) -> Problem:
        """The problem with the usual value for whatever is open."""
        heads_q, heads_kv = self.heads or GQA
        return Problem(
            mask=pattern,
            heads_q=heads_q,
            heads_kv=heads_kv,
            head_dim=HEAD_DIM if self.head_dim is None else self.head_dim,
            dtype=self.dtype or "bfloat16",
            device=self.device,
            direction=direction,
        )

    def variants(self, problem: Problem, codes: set[str]) -> Iterator[Problem]:
        """The problem with other values for what is open and what the codes of some reasons are about."""
        dtypes = _DTYPES if self.dtype is None and "dtype" in codes else (problem.dtype,)
        heads = (GQA, MHA) if self.heads is None and "gqa" in codes else ((problem.heads_q, problem.num_heads_kv),)
        dims = (HEAD_DIM, OTHER_HEAD_DIM) if self.head_dim is None and "head_dim" in codes else (problem.head_dim,)
        for dtype in dtypes:
            for heads_q, heads_kv in heads:
                for head_dim in dims:
                    yield replace(problem, dtype=dtype, heads_q=heads_q, heads_kv=heads_kv, head_dim=head_dim)


@dataclass(frozen=True)
class Cell:
    """One kernel, one pattern, one direction.

    Attributes:
        status: How far it is from running.
        problem: What was asked in the end.
        verdict: What was answered to that.
    """

    status: Status
    problem: Problem
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        """The cell as plain data."""
        problem, offer = self.problem, self.verdict.offer
        return {
            "kernel": self.verdict.kernel,
            "pattern": problem.mask.label,
            "direction": problem.direction,
            "status": str(self.status),
            "dtype": problem.dtype,
            "heads_q": problem.heads_q,
            "heads_kv": problem.heads_kv,
            "head_dim": problem.head_dim,
            "form": str(offer.form) if offer else None,
            "reasons": [vars(reason) for reason in self.verdict.reasons],
        }


def examine(registry: Registry, kernel: str, pattern: Pattern, direction: Direction, question: Question) -> Cell:
    """How a kernel stands to a pattern in one direction.

    Each offer is asked alone, because the offer nearest to what was asked is not always the one nearest to running:
    a forward-only offer for this device says less than a full one for another. But where an offer for this kind of
    device falls short of the question alone, that it would do on another kind is no answer.
    """
    problem = question.problem(pattern, direction)
    best = _ask(registry, kernel, problem, question)
    vetoed = any(reason.code == "plugin" for reason in best.verdict.reasons)
    if best.status is Status.HERE or vetoed:
        return best
    for alone in _offers_apart(registry.manifest(kernel), question.device.kind):
        if _is_about_the_question(best) and not alone.offers[0].runs_on(question.device.kind):
            break
        cell = _ask(registry, alone, problem, question)
        if cell.status is Status.HERE:
            # Only the kernel itself is put to its plugin's veto.
            cell = _cell(cell.problem, registry.resolve(kernel, cell.problem))
        if cell.status.distance < best.status.distance:
            best = cell
    return best


def _ask(registry: Registry, kernel: str | KernelManifest, problem: Problem, question: Question) -> Cell:
    best = _cell(problem, registry.resolve(kernel, problem))
    if best.status in (Status.HERE, Status.NONE):
        return best
    codes = {reason.code for reason in best.verdict.reasons}
    for variant in question.variants(problem, codes):
        cell = _cell(variant, registry.resolve(kernel, variant))
        if cell.status.distance < best.status.distance:
            best = cell
    return best


def _cell(problem: Problem, verdict: Verdict) -> Cell:
    codes = {reason.code for reason in verdict.reasons}
    if not codes:
        status = Status.HERE
    elif codes & {"form", "direction", "mask_heads"}:
        status = Status.NONE
    elif codes <= {"package"}:
        status = Status.PACKAGE
    else:
        status = Status.DEVICE if codes <= {"device", "package"} else Status.OPTIONS
    return Cell(status, problem, verdict)


def _is_about_the_question(cell: Cell) -> bool:
    """Whether heads, data type or head dimension keep a kernel from running, and the device does not."""
    return cell.status is Status.OPTIONS and all(reason.code != "device" for reason in cell.verdict.reasons)


@cache
def _offers_apart(manifest: KernelManifest, kind: str) -> tuple[KernelManifest, ...]:
    """A manifest for each offer, those for a kind of device first.

    They bear the kernel's name, but are not registered.
    """
    if len(manifest.offers) == 1:
        return ()
    offers = sorted(manifest.offers, key=lambda offer: not offer.runs_on(kind))
    return tuple(manifest.model_copy(update={"offers": (offer,)}) for offer in offers)
