"""Capabilities: whether each kernel runs each mask pattern on a device, and the reasons if it does not.

A question may leave the data type, the heads and the head dimension open. The usual value is tried first, then the
others. The cell names the value that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from longca.manifests import Device, KernelManifest, Problem, Reason, Verdict
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.manifests.verified import Standing, standing
from longca.masks import Pattern
from longca.plugins import Registry

__all__ = ["GQA", "HEAD_DIM", "MHA", "Cell", "Question", "Reach", "examine", "installs"]

GQA, MHA = (64, 8), (8, 8)
HEAD_DIM, OTHER_HEAD_DIM = 128, 64
_INSTALL = "Install it: "  # the beginning of the advice for a missing package
_DTYPES: tuple[DType, ...] = ("bfloat16", "float16", "float32", "float64")


class Reach(StrEnum):
    """The distance of a kernel from running a problem. The first is the nearest.

    Attributes:
        meaning: The words for people. The subject is the kernel.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Reach:
        """A member with its meaning."""
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    HERE = "here", "runs here"
    EXPECTED = "expected", "should run here; nobody verified it on such a device"
    PACKAGE = "package", "would run here; a package is missing"
    DEVICE = "device", "runs on other devices, not on this one"
    OPTIONS = "options", "takes the mask, but not with these heads, dtype or head dimension"
    NONE = "none", "not offered"

    @property
    def distance(self) -> int:
        """The place in the order."""
        return list(Reach).index(self)


@dataclass(frozen=True)
class Question:
    """The question for every kernel and pattern. None leaves a value open.

    Attributes:
        device: The device.
        dtype: Data type.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
    """

    device: Device
    dtype: DType | None = None
    heads: tuple[int, int] | None = None
    head_dim: int | None = None

    def describe(self) -> str:
        """The question in a few words, without the device."""
        heads = f"{self.heads[0]}:{self.heads[1]} heads" if self.heads else "heads 64:8, else 8:8"
        dim = self.head_dim or f"{HEAD_DIM}, else {OTHER_HEAD_DIM}"
        return f"{self.dtype or 'bfloat16, else any dtype'}; {heads}; head dimension {dim}"

    def problem(self, pattern: Pattern, direction: Direction) -> Problem:
        """The problem, with the usual value for each open one."""
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
        """The problem with all values for each open one that the codes of some reasons are about."""
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
        reach: The distance from running.
        problem: The last problem that was asked.
        verdict: The answer to it.
    """

    reach: Reach
    problem: Problem
    verdict: Verdict

    @property
    def standing(self) -> Standing | None:
        """The standing of the offer that covers the problem on the device, or None without one."""
        offer = self.verdict.offer
        return standing(self.verdict.kernel, offer, self.problem.device) if offer else None

    def as_json(self) -> dict[str, Any]:
        """The cell as plain data."""
        problem, offer, found = self.problem, self.verdict.offer, self.standing
        return {
            "kernel": self.verdict.kernel,
            "pattern": problem.mask.label,
            "direction": problem.direction,
            "status": str(self.reach),
            "verified": str(found) if found else None,
            "dtype": problem.dtype,
            "heads_q": problem.heads_q,
            "heads_kv": problem.heads_kv,
            "head_dim": problem.head_dim,
            "form": str(offer.form) if offer else None,
            "reasons": [vars(reason) for reason in self.verdict.reasons],
        }


def examine(registry: Registry, kernel: str, pattern: Pattern, direction: Direction, question: Question) -> Cell:
    """The cell of a kernel, a pattern and a direction.

    Each offer is asked alone, because the offer nearest to the problem is not always the nearest to running. A
    forward-only offer for this device says less than a full offer for another device. However, if an offer for this
    kind of device fails only on the question's values, an offer for another kind of device is no answer.
    """
    problem = question.problem(pattern, direction)
    best = _ask(registry, kernel, problem, question)
    vetoed = any(reason.code == "plugin" for reason in best.verdict.reasons)
    if best.reach is Reach.HERE or vetoed:
        return best
    for alone in _offers_apart(registry.manifest(kernel), question.device.kind):
        if _is_about_the_question(best) and not alone.offers[0].runs_on(question.device.kind):
            break
        cell = _ask(registry, alone, problem, question)
        if cell.reach is Reach.HERE:
            # The plugin's veto applies to the kernel itself alone.
            cell = _cell(cell.problem, registry.resolve(kernel, cell.problem))
        if cell.reach.distance < best.reach.distance:
            best = cell
    return best


def _ask(registry: Registry, kernel: str | KernelManifest, problem: Problem, question: Question) -> Cell:
    best = _cell(problem, registry.resolve(kernel, problem))
    if best.reach in (Reach.HERE, Reach.NONE):
        return best
    codes = {reason.code for reason in best.verdict.reasons}
    for variant in question.variants(problem, codes):
        cell = _cell(variant, registry.resolve(kernel, variant))
        if cell.reach.distance < best.reach.distance:
            best = cell
    return best


def _cell(problem: Problem, verdict: Verdict) -> Cell:
    codes = {reason.code for reason in verdict.reasons}
    if not codes:
        reach = Reach.HERE
    elif codes & {"form", "direction", "mask_heads"}:
        reach = Reach.NONE
    elif "unverified" in codes and codes <= {"unverified", "package"}:
        reach = Reach.EXPECTED
    elif codes <= {"package"}:
        reach = Reach.PACKAGE
    else:
        reach = Reach.DEVICE if codes <= {"device", "package"} else Reach.OPTIONS
    return Cell(reach, problem, verdict)


def _is_about_the_question(cell: Cell) -> bool:
    """Whether heads, data type or head dimension stop a kernel, and not the device."""
    return cell.reach is Reach.OPTIONS and all(reason.code != "device" for reason in cell.verdict.reasons)


@cache
def _offers_apart(manifest: KernelManifest, kind: str) -> tuple[KernelManifest, ...]:
    """A manifest for each offer, with the offers for a kind of device first.

    The manifests have the kernel's name, but are not registered.
    """
    if len(manifest.offers) == 1:
        return ()
    offers = sorted(manifest.offers, key=lambda offer: not offer.runs_on(kind))
    return tuple(manifest.model_copy(update={"offers": (offer,)}) for offer in offers)


def installs(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The commands that install missing packages, each once."""
    advice = (reason.advice for reason in reasons if reason.code == "package")
    return tuple(dict.fromkeys(text.removeprefix(_INSTALL) for text in advice if text.startswith(_INSTALL)))
