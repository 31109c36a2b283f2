"""Resolving: the one place that decides whether a kernel takes a problem, and by which offer.

The order of the checks is fixed: mask, device, then the rest. If no offer covers the problem, the verdict has the
reasons of the nearest offers. An offer that nobody verified on the device covers a problem that allows it, if no
verified offer does. With `anywhere`, a package that is missing on this machine is no reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.manifests.installs import remedy
from longca.manifests.kernel import KernelManifest
from longca.manifests.nearest import capabilities, head_dims_taken, nearest_reasons
from longca.manifests.offers import Backward, Offer
from longca.manifests.packages import missing
from longca.manifests.problem import Device, Problem
from longca.manifests.step_cuts import StepStack, step_problems, step_stacks
from longca.manifests.strategy import Layout
from longca.manifests.verdict import Reason, Verdict
from longca.manifests.verified import Standing, check_of, standing, verified_stamp
from longca.masks import MAX_DENSE_CELLS, Form, Mask, SliceMask
from longca.plan_cache import PlanCache

__all__ = ["resolve_manifest", "resolve_steps", "stack_offers", "step_problems"]


def resolve_manifest(
    manifest: KernelManifest, problem: Problem, layout: Layout | None = None, *, anywhere: bool = False
) -> Verdict:
    """Whether a kernel's manifest covers a problem, alone or in every step of a layout.

    Args:
        manifest: The kernel's manifest.
        problem: The problem.
        layout: Under context parallelism, the queries, keys and heads of every step.
        anywhere: Whether to answer for a machine that has every package.
    """
    if layout is not None:
        return _resolve_layout(manifest, problem, layout, anywhere)
    rest = _about_rest(manifest, problem, anywhere)
    for index, unverified in rest.fitting:
        offer = manifest.offers[index]
        if not any(_about_mask(manifest.name, offer, problem)):
            return Verdict(manifest.name, offer, unverified=unverified)
    refusals = [
        (offer, (*_about_mask(manifest.name, offer, problem), *reasons))
        for offer, reasons in zip(manifest.offers, rest.reasons, strict=True)
    ]
    nearest = nearest_reasons(manifest.name, refusals, problem)
    if any(reason.code == "form" for reason in nearest):
        nearest = (_no_form(manifest, problem),)
    return Verdict(manifest.name, None, nearest)


def resolve_steps(manifest: KernelManifest, steps: Sequence[Problem | None]) -> Iterator[Verdict]:
    """Whether a kernel takes each step of one rank, from `step_problems`. An empty step is valid without an offer."""
    for step in steps:
        yield Verdict(manifest.name) if step is None else resolve_manifest(manifest, step)


class _Rest(NamedTuple):
    """The answer for all offers as far as it does not depend on the mask.

    Attributes:
        fitting: The offers without reasons against them, by index, and whether each is unverified. These are last.
        reasons: The reasons against each offer.
    """

    fitting: tuple[tuple[int, bool], ...]
    reasons: tuple[tuple[Reason, ...], ...]


def _about_rest(manifest: KernelManifest, problem: Problem, anywhere: bool) -> _Rest:
    def make() -> _Rest:
        reasons = [tuple(_about_others(manifest, offer, problem, anywhere)) for offer in manifest.offers]
        found = [
            (index, _is_unverified(manifest, offer, problem))
            for index, offer in enumerate(manifest.offers)
            if not reasons[index]
        ]
        return _Rest(tuple(sorted(found, key=lambda one: one[1])), tuple(reasons))

    checked = verified_stamp() if problem.device.kind == "cuda" else None
    packages = anywhere or tuple(map(missing, manifest.requires))
    return _RESTS.get(None, (manifest, problem.settings, checked, packages), make)


#: The latest answers but for masks. New batches ask for the same ones.
_RESTS: PlanCache[_Rest] = PlanCache(1024)


def _is_unverified(manifest: KernelManifest, offer: Offer, problem: Problem) -> bool:
    return problem.allow_unverified and standing(manifest.name, offer, problem.device).is_open


def _about_others(manifest: KernelManifest, offer: Offer, problem: Problem, anywhere: bool) -> Iterator[Reason]:
    """The reasons that do not depend on the mask."""
    yield from _about_device(manifest.name, offer, problem)
    yield from _about_tensors(manifest.name, offer, problem)
    yield from _about_composing(manifest.name, offer, problem)
    yield from _about_backward(manifest.name, offer, problem)
    for requirement in () if anywhere else (*manifest.requires, *offer.requires):
        if problem_with := missing(requirement):
            needed = requirement.replace("|", "or")
            yield Reason(
                "package", problem_with, f"{manifest.name} needs {needed}", remedy(requirement, manifest.install)
            )


def _about_mask(name: str, offer: Offer, problem: Problem) -> Iterator[Reason]:
    mask = problem.mask
    if not mask.admits(offer.form):
        yield Reason("form", f"this is a {mask.noun}", f"{name} takes {offer.form} masks here")
        return
    if offer.most is not None and (count := mask.count(offer.form)) > offer.most:
        yield Reason("form", f"this {mask.noun} takes {count}", f"{name} takes at most {offer.most} {offer.form}")
    for size, most in offer.max_sizes:
        if (count := size.of(problem)) > most:
            about = ("form", f"this {mask.noun} takes {count}") if size.form else ("lengths", f"{count} were asked")
            yield Reason(*about, f"{name} takes at most {most} {size}")
    if offer.form is Form.BLOCK_SPARSE:
        yield from _about_blocks(name, offer, problem)
    if not mask.is_square and not offer.unequal_lengths:
        yield Reason("lengths", "Sq ≠ Sk was asked", f"{name} takes as many queries as keys in its {offer.form} form")
    if mask.heads > 1 and offer.mask_heads == "shared":
        yield Reason("mask_heads", "heads differ here", f"{name} takes one mask for all heads in its {offer.form} form")
    elif mask.heads > problem.num_heads_kv and offer.mask_heads == "kv" and isinstance(mask, Mask):
        yield Reason("mask_heads", "query heads of a group differ here", f"{name} takes one mask for each KV head")
    if isinstance(mask, Mask) and offer.max_seqlen is not None:
        longest = max(mask.seqlen_q, mask.seqlen_k)
        if longest > offer.max_seqlen:
            yield Reason("lengths", f"{longest} were asked", f"{name} takes at most {offer.max_seqlen} tokens here")


def _about_blocks(name: str, offer: Offer, problem: Problem) -> Iterator[Reason]:
    mask = problem.mask
    if mask.block_size is not None:
        if offer.block_sizes is not None and mask.block_size not in offer.block_sizes:
            sizes = ", ".join(map(str, offer.block_sizes))
            yield Reason("form", f"this mask's are {mask.block_size}", f"{name} takes blocks of {sizes} tokens")
    elif not mask.has_uniform_blocks and not offer.variable_blocks:
        yield Reason("form", "this mask's blocks differ in size", f"{name} takes blocks of one size")
    if not isinstance(mask, Mask):
        return
    if offer.heads_per_mask is not None and problem.heads_per_mask not in offer.heads_per_mask:
        counts = ", ".join(map(str, offer.heads_per_mask))
        offered = f"{name} takes {counts} query heads of a KV head that share their mask here"
        yield Reason("mask_heads", f"{problem.heads_per_mask} share theirs", offered)
    if mask.block_size is not None and (rows := mask.block_size * problem.heads_per_mask) < offer.min_block_rows:
        offered = f"{name} takes blocks of at least {offer.min_block_rows} queries under the heads that share a mask"
        yield Reason("mask_heads", f"these have {rows}", offered)


def _about_device(name: str, offer: Offer, problem: Problem) -> Iterator[Reason]:
    device = problem.device
    found = standing(name, offer, device)
    if found.is_open:
        if not problem.allow_unverified:
            yield _unverified(name, offer, device)
    elif found is not Standing.NOT_OFFERED:
        return
    elif device.kind == "cpu":
        yield Reason("device", "this device is a CPU", f"{name} runs on CUDA devices of {capabilities([offer])}")
    elif not offer.runs_on("cuda"):
        yield Reason("device", f"this device is {device}", f"{name} runs on CPUs")
    else:
        yield Reason(
            "device",
            f"this device has {device.capability_text or 'none known'}",
            f"{name} needs {capabilities([offer])}",
        )


#: The same words for every kernel, so that listings say them once.
_VERIFY = "`longca verify --unverified --kernel NAME`"


def _unverified(name: str, offer: Offer, device: Device) -> Reason:
    """The reason against an offer that nobody verified on a device, or that failed there."""
    asked = f"its compute capability is {device.capability_text}"
    if check := check_of(name, offer, device):
        failed = f"{name} should run on this device, and its verification here failed ({check.message})"
        return Reason("unverified", asked, failed, f"Run {_VERIFY} again once the reason is gone")
    advice = f"Run {_VERIFY}, or give allow_unverified=True, or --unverified to `longca run`"
    return Reason("unverified", asked, f"{name} should run on this device, and nobody verified it there", advice)


def _about_tensors(name: str, offer: Offer, problem: Problem) -> Iterator[Reason]:
    if problem.dtype not in offer.dtypes:
        yield Reason("dtype", f"{problem.dtype} was asked", f"{name} takes {', '.join(offer.dtypes)}")
    if not offer.takes_dims(*problem.dims):
        yield Reason("head_dim", f"{problem.dims_text} was asked", head_dims_taken(name, [offer], problem))
    if problem.softcap and not offer.softcap:
        yield Reason("softcap", "a soft cap was asked", f"{name} has no soft cap on the scores")
    if problem.is_gqa and not offer.gqa:
        asked = f"{problem.heads_q}:{problem.heads_kv} heads were asked"
        yield Reason("gqa", asked, f"{name} takes as many KV heads as query heads")


def _about_composing(name: str, offer: Offer, problem: Problem) -> Iterator[Reason]:
    about = (
        ("sinks", "sinks were asked") if problem.sinks else ("composition", "one part of a larger softmax was asked")
    )
    if problem.composed and problem.direction == "backward" and offer.backward is Backward.OWN:
        yield Reason(*about, f"{name}'s backward takes only its own forward's lse")
    # The backward of a pair may recompute a log-sum-exp, but only to differentiate it.
    computes_lse = not problem.backward_only or offer.backward is Backward.LSE_GRAD
    if problem.composed and offer.rough_lse and computes_lse:
        yield Reason(*about, f"{name}'s log-sum-exp is too rough to merge by")
    if problem.composed and offer.optional_lse and computes_lse:
        yield Reason(*about, f"{name} may give no log-sum-exp to merge by")


def _about_backward(name: str, offer: Offer, problem: Problem) -> Iterator[Reason]:
    if problem.direction == "backward" and offer.backward is Backward.NONE:
        yield Reason("direction", "a backward was asked", f"{name} has a forward alone in its {offer.form} form")
    if not offer.forward and not problem.backward_only:
        alone = f"{name} has a backward alone in its {offer.form} form"
        yield Reason("direction", "a forward was asked", alone, f"Pair it with a kernel that has one: FORWARD+{name}")
    if problem.deterministic and not offer.deterministic:
        yield Reason("deterministic", "equal bits were asked", f"{name} is not deterministic in its {offer.form} form")


def _no_form(manifest: KernelManifest, problem: Problem) -> Reason:
    """One reason for all offers, if no offer takes the mask's form."""
    mask = problem.mask
    asked = f"a {mask.noun} has none of these forms"
    taken: dict[str, None] = {}
    for offer in manifest.offers:
        text = str(offer.form)
        if offer.most:
            others = (f", {most} {size}" for size, most in offer.max_sizes)
            text += f" (at most {offer.most}{''.join(others)})"
        elif offer.block_sizes:
            text += f" (blocks of {', '.join(map(str, offer.block_sizes))})"
        elif offer.form is Form.DENSE and isinstance(mask, Mask):
            # Every mask is dense but for its size.
            text += f" (at most {_billions(MAX_DENSE_CELLS)} entries)"
            asked = f"a {mask.noun} has {_billions(mask.heads * mask.seqlen_q * mask.seqlen_k)} entries"
        taken[text] = None
    # A form without limits stands for the same form with limits.
    widest = [text for text in taken if text.partition(" (")[0] not in {*taken} - {text}]
    return Reason("form", asked, f"{manifest.name} takes {', '.join(widest)}")


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f} billion"


def _resolve_layout(manifest: KernelManifest, problem: Problem, layout: Layout, anywhere: bool) -> Verdict:
    """The verdict for a layout: valid if every non-empty step has an offer."""
    used: dict[Offer, None] = {}
    unverified = False
    for rank, verdict in _step_verdicts(manifest, problem, layout, anywhere):
        if not verdict.valid:
            where = Reason("layout", f"rank {rank} of {layout.world_size} needs it", "Every step needs an offer")
            return Verdict(manifest.name, None, (*verdict.reasons, where))
        unverified |= verdict.unverified
        if verdict.optional_lse:
            lacking = f"{manifest.name} may give no log-sum-exp, and ranks return one with their outputs"
            return Verdict(manifest.name, None, (Reason("layout", f"{layout.world_size} ranks were asked", lacking),))
        if verdict.offer is not None:
            used[verdict.offer] = None
    only = next(iter(used)) if len(used) == 1 else None
    return Verdict(manifest.name, only, (), tuple(used), unverified=unverified)


def _step_verdicts(
    manifest: KernelManifest, problem: Problem, layout: Layout, anywhere: bool
) -> Iterator[tuple[int, Verdict]]:
    """The verdict on the first step that each offer takes, or that no offer takes, with its rank."""
    if not isinstance(problem.mask, SliceMask):
        for rank, steps in enumerate(step_problems(problem, layout)):
            for step in steps:
                if step is not None:
                    yield rank, resolve_manifest(manifest, step, anywhere=anywhere)
        return
    for stack in step_stacks(problem, layout):
        found = stack_offers(manifest, problem, stack, every=False, anywhere=anywhere)
        shown = np.flatnonzero(stack.shows)
        for index in shown[np.sort(np.unique(found[shown], return_index=True)[1])].tolist():
            if found[index] < 0:
                verdict = resolve_manifest(manifest, stack.problem(problem, index), anywhere=anywhere)
            else:
                offer = manifest.offers[found[index]]
                verdict = Verdict(manifest.name, offer, unverified=_is_unverified(manifest, offer, problem))
            yield int(stack.ranks[index]), verdict


def stack_offers(
    manifest: KernelManifest, problem: Problem, stack: StepStack, *, every: bool = True, anywhere: bool = False
) -> NDArray[np.int64]:
    """The offer that takes each step of a stack, by its index in the manifest: [steps]. −1 without one.

    The problem is that of all ranks. Without `every`, the steps behind one that no offer takes may have −1 too.
    """
    found = np.full(len(stack.ranks), -1)
    for (heads_q, heads_kv, composed), steps in stack.kinds:
        kind = replace(problem, heads_q=heads_q, heads_kv=heads_kv, composed=composed)
        indices = [index for index, _ in _about_rest(manifest, kind, anywhere).fitting]
        taken = stack.first_offers([manifest.offers[index] for index in indices], steps, every, problem.direction)
        found[steps] = np.array([*indices, -1])[taken]
    return found
