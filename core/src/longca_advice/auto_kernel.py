"""auto_kernel: the kernel, or the pair of kernels, that `kernel="auto"` takes.

The cost model decides if it can. Among the kernels and pairs that are valid and installed here, the choice with the
least predicted time wins: the time of the forward, or in training of forward and backward together. The predictions
come from the table that is shipped with LongCA and from the measurements of this machine. A prediction that goes
beyond the measurements counts as slow as its interval allows. A kernel without a prediction is not compared with the
others. A kernel is passed over if LongCA found its installed version wrong or suspect on this device. A choice that
does not fit into the device's memory is passed over, unless nothing fits. If the least time goes beyond the
measurements, `naive` comes after all choices within its interval.

One warning names a kernel that is not installed and would take at least 10 % less time.

If nothing has a prediction for this GPU, the predictions for the measured GPU with the nearest compute capability
decide, and the reason says so. Pairs count only if the compute capability is the same.

Without any prediction a stated order decides: kernels whose mask metadata is not quadratic come first, `naive` comes
last, and otherwise the order is that of `longca plugins`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

from longca.adviser import Choice
from longca.manifests import Problem, Verdict
from longca.plain_text import time_text
from longca.plugins import Registry
from longca_advice.candidates import Candidate, pair_candidates, single_candidates
from longca_advice.devices import Capacity
from longca_advice.known_plugins import installable, with_known
from longca_advice.request import Request, similar_gpus, trusted, with_evidence_of
from longca_advice.sources import sources

__all__ = ["choose", "explained", "interval", "was_chosen_for"]

#: The largest part of the chosen kernel's time that one which is not installed may take to be named.
_CLEARLY = 0.9


def choose(problem: Problem, registry: Registry, verdicts: Mapping[str, Verdict] | None = None) -> Choice:
    """The kernel or the pair to run a problem with.

    Args:
        problem: The problem.
        registry: The registry of kernels to choose from.
        verdicts: Under context parallelism, whether each kernel takes every step. The kernels are then compared by
            their predictions for the whole mask on one device. Pairs and memory do not count.

    Raises:
        UnsupportedError: No kernel takes it. The message gives the reasons for each kernel.
        RequestError: The table that is shipped with LongCA cannot be read.
    """
    known, sharded, training = sources(), verdicts is not None, problem.direction == "backward"
    is_first = not sharded and not was_chosen_for(problem, registry)
    if is_first:
        _chosen_for(registry).add(_kind(problem))
    capacity = None if sharded else Capacity.of(problem.device)
    kernels = tuple(verdicts or registry.kernels)
    request = Request(problem, training, registry, known.costs, capacity, kernels, anywhere=False)
    alone = {name: registry.resolve(name, problem) for name in request.kernels}
    valid, doubted = trusted(problem, registry, [name for name, verdict in (verdicts or alone).items() if verdict])
    for gpu in similar_gpus(problem.device):
        request = with_evidence_of(request, gpu)
        found = single_candidates(request, {name: alone[name] for name in valid})
        if not sharded and request.has_own_capability:
            found = [*found, *pair_candidates(request, found)]
        if found:
            choice = _predicted(request, _reference_last(sorted(found, key=lambda candidate: candidate.ranked)))
            about = ". Times are those of the whole mask on one device" if sharded else ""
            better = _better(request, choice.kernel, found) if is_first else None
            return replace(choice, reason=choice.reason + about, wrong=(*choice.wrong, *doubted), better=better)
    return replace(_first(request, verdicts or alone, valid), wrong=(*known.notes, *doubted))


@lru_cache(maxsize=8)
def _chosen_for(registry: Registry) -> set[tuple[object, ...]]:
    """The kinds of problems that kernels were chosen for, so that a new mask of a kind is not compared again."""
    return set()


def _kind(problem: Problem) -> tuple[object, ...]:
    return problem.concrete_mask.pattern, problem.settings


def was_chosen_for(problem: Problem, registry: Registry) -> bool:
    """Whether a kernel was chosen for such a problem before, and compared with those that are not installed."""
    return _kind(problem) in _chosen_for(registry)


def _better(request: Request, chosen: str, valid: Sequence[Candidate]) -> tuple[str, str] | None:
    """The fastest kernel that is not installed, and a sentence on it, if it is clearly faster than the chosen one."""
    registry, problem = with_known(request.registry), request.problem
    lines = installable(registry)
    every = replace(request, registry=registry, kernels=tuple(lines), anywhere=True)
    absent = single_candidates(every, {name: every.resolve(name, problem) for name in lines})
    best = min(absent, key=lambda candidate: candidate.ranked, default=None)
    taken = next(candidate for candidate in valid if candidate.kernel == chosen)
    if best is None or best.ranked > _CLEARLY * taken.ranked:
        return None
    said = f"on one device {best.kernel} would take {interval(best)} where {chosen} takes {interval(taken)}"
    return best.kernel, f"attention: {said}, and is not installed. Install it: {lines[best.kernel]}"


def _first(request: Request, verdicts: Mapping[str, Verdict], valid: Sequence[str]) -> Choice:
    """The first valid kernel in the stated order."""
    if not valid:
        reasons = tuple(reason for verdict in verdicts.values() for reason in verdict.reasons)
        replace(next(iter(verdicts.values())), reasons=reasons).check()

    def order(name: str) -> tuple[bool, bool]:
        offers = verdicts[name].offers or (verdicts[name].offer,)
        return name == "naive", any(offer is not None and offer.metadata == "O(S²)" for offer in offers)

    kernel = min(valid, key=order)
    reason = (
        f"the first valid kernel. No measurement on {request.device_name} says how fast the valid kernels are; "
        "`longca run` measures them"
    )
    return Choice(kernel, _subject(request, kernel), reason)


def _predicted(request: Request, ranked: Sequence[Candidate]) -> Choice:
    """The first candidate that fits, or the first one if none fits."""
    too_large = list(takewhile(lambda candidate: not candidate.fits, ranked))
    fitting = ranked[len(too_large) :]
    winner, *others = fitting or ranked
    sentences = ["Nothing else has a prediction"]
    if others:
        sentences = [f"Next is {others[0].kernel} with {interval(others[0])}"]
    if fitting:
        sentences += [f"{one.kernel} is passed over: it needs {_memory(request, one)}" for one in too_large]
    else:
        sentences.append(f"No choice fits into the memory. This one needs {_memory(request, winner)}")
    return explained(winner, sentences, bool(fitting))


def _reference_last(ranked: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates. If the fastest prediction extrapolates, `naive` comes after all that may be as fast.

    `naive` is written to be right, not to be fast. Its time for a tile grows when its blocks outgrow a cache, which
    measurements of short masks do not show.
    """
    first = ranked[0]
    if not first.proof.extrapolates:
        return ranked

    def order(candidate: Candidate) -> tuple[bool, bool]:
        tied = candidate.seconds <= first.interval[1]
        return not tied, tied and "naive" in candidate.kernels

    return sorted(ranked, key=order)


def _memory(request: Request, candidate: Candidate) -> str:
    assert request.capacity is not None, "without a capacity everything fits"
    return f"{candidate.memory.total / 2**30:.1f} GiB of the device's {request.capacity.usable / 2**30:.1f} GiB"


def explained(found: Candidate, sentences: Sequence[str], fits: bool) -> Choice:
    """A prediction as a choice with its reason: the time and its evidence, further sentences, and warnings."""
    proof, request = found.proof, found.request
    said = [f"predicted to take {interval(found)}, {proof.learnt}, the nearest in {proof.nearest}", *sentences]
    said += filter(None, [request.from_similar_gpu])
    if proof.outside:
        said.append(f"The prediction extrapolates: {'; '.join(proof.outside)}")
    if proof.versions:
        said.append(f"The versions differ: {'; '.join(proof.versions)}")
    level = logging.WARNING if proof.outside or not fits else logging.INFO
    return Choice(found.kernel, _subject(request, found.title), ". ".join(said), level, sources().notes)


def interval(found: Candidate) -> str:
    """A predicted time and its interval in words."""
    seconds, low, high = (time_text(each) for each in (found.seconds, *found.interval))
    return f"{seconds} ({low} to {high})"


def _subject(request: Request, title: str) -> str:
    """A choice and the mask that it is for, in words."""
    return f"{title} for {request.problem.mask.label}{' in training' * request.training}"
