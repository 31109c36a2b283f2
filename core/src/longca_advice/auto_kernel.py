"""auto_kernel: the kernel, or the pair of kernels, that `kernel="auto"` takes.

The cost model decides if it can. Among the kernels and pairs that are valid and installed here, the choice with the
least predicted time wins: the time of the forward, or in training of forward and backward together. The predictions
come from the table that is shipped with LongCA and from the measurements of this machine. A prediction that goes
beyond the measurements counts as slow as its interval allows. A kernel without a prediction is not compared with the
others. A kernel is passed over if LongCA found its installed version wrong or suspect on this device. A choice that
does not fit into the device's memory is passed over, unless nothing fits. If the least time goes beyond the
measurements, `naive` comes after all choices within its interval.

If nothing has a prediction for this GPU, the predictions for the measured GPU with the nearest compute capability
decide, and the reason says so. Pairs count only if the compute capability is the same.

Without any prediction a stated order decides: kernels whose mask metadata is not quadratic come first, `naive` comes
last, and otherwise the order is that of `longca plugins`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from longca.manifests import Problem, Verdict
from longca.manifests.devices import cpu_device
from longca.plugins import Registry
from longca_advice.asked import Asked
from longca_advice.capacity import RESERVED, Capacity
from longca_advice.choices import Choice as Predicted
from longca_advice.devices import evidence_name
from longca_advice.kernels import Candidate, pair_candidates, single_candidates
from longca_advice.sources import sources
from longca_advice.weighed import Weighed

__all__ = ["Choice", "capacity_of", "choose", "explained", "interval", "log", "subject"]

_log = logging.getLogger("longca")

#: The subjects of choices and the sentences on this machine's history that were logged already.
_LOGGED: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class Choice:
    """The chosen kernel, and why.

    Attributes:
        kernel: Name of the kernel, or of the pair.
        subject: The choice and its mask, in words.
        reason: The reason, in sentences.
        level: The level to log it at: WARNING if the prediction extrapolates or nothing fits, or else INFO.
        wrong: The errors in this machine's history, in sentences.
    """

    kernel: str
    subject: str
    reason: str
    level: int = logging.INFO
    wrong: tuple[str, ...] = ()

    @property
    def announcement(self) -> str:
        """The choice and its reason."""
        return f"attention: {self.subject}: {self.reason}"


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
    capacity = None if sharded else capacity_of(problem)
    kernels = tuple(verdicts or registry.kernels)
    asked = Asked(problem, training, registry, known.costs, capacity, kernels, anywhere=False)
    alone = {name: registry.resolve(name, problem) for name in asked.kernels}
    valid, doubted = _trusted(problem, registry, [name for name, verdict in (verdicts or alone).items() if verdict])
    asked, candidates = _candidates(asked, {name: alone[name] for name in valid}, sharded)
    if not candidates:
        return replace(_first(asked, verdicts or alone, valid), wrong=(*known.notes, *doubted))
    ranked = sorted(candidates, key=lambda candidate: candidate.ranked)
    choice = _predicted(asked, _reference_last(ranked))
    about = ". Times are those of the whole mask on one device" if sharded else ""
    return replace(choice, reason=choice.reason + about, wrong=(*choice.wrong, *doubted))


def _candidates(asked: Asked, valid: Mapping[str, Verdict], sharded: bool) -> tuple[Asked, list[Candidate]]:
    """The kernels and pairs with a prediction for this device, or else for the most similar GPU that has any.

    Returns:
        The question, with the GPU whose evidence answers it, and the candidates. There may be none.
    """
    found = single_candidates(asked, valid)
    if not sharded:
        found = [*found, *pair_candidates(asked, found)]
    for gpu in () if found else asked.costs.gpus_like(asked.problem.device):
        other = replace(asked, measured=gpu)
        found = single_candidates(other, valid)
        if not sharded and gpu.capability == asked.problem.device.capability:
            doubted = _doubted(asked.problem, asked.registry, asked.kernels)
            trusted = tuple(name for name in asked.kernels if name not in doubted)
            found = [*found, *pair_candidates(replace(other, kernels=trusted), found)]
        if found:
            return other, found
    return asked, found


def _trusted(problem: Problem, registry: Registry, valid: list[str]) -> tuple[list[str], list[str]]:
    """The kernels whose installed version was not found wrong here, or all of them if none is left.

    Returns:
        The kernels, and a sentence about each other one, or about all of them.
    """
    doubted = _doubted(problem, registry, valid)
    if doubted and len(doubted) == len(valid):
        return valid, [
            f"LongCA found every valid kernel wrong or suspect here, and one is taken: {', '.join(sorted(doubted))}"
        ]
    said = [f"{name} is passed over: LongCA found this version of it wrong or suspect here" for name in sorted(doubted)]
    return [name for name in valid if name not in doubted], said


def _doubted(problem: Problem, registry: Registry, kernels: Iterable[str]) -> set[str]:
    """The kernels whose installed version was found wrong or suspect on the problem's device."""
    device = evidence_name(problem.device)
    found = {(kernel, version) for kernel, where, version in sources().doubted if where == device}
    providers = {name: registry.provider(name) for name in kernels} if found else {}
    return {name for name, its in providers.items() if (name, f"{its.distribution} {its.version}") in found}


def log(choice: Choice) -> None:
    """Logs a choice and its reason, once for several alike. Logs errors in the history once, too."""
    for text in choice.wrong:
        _say(text, logging.WARNING, text)
    _say(choice.subject, choice.level, choice.announcement)


def _say(subject: str, level: int, text: str) -> None:
    if (subject, level) not in _LOGGED:
        _LOGGED.add((subject, level))
        _log.log(level, text)


def capacity_of(problem: Problem) -> Capacity | None:
    """The memory of the problem's device, or this machine's for a CPU. None if it is unknown or all reserved."""
    device = problem.device
    memory = cpu_device().memory if device.kind == "cpu" and device.memory is None else device.memory
    return Capacity(memory) if memory is not None and memory > RESERVED else None


def _first(asked: Asked, verdicts: Mapping[str, Verdict], valid: Sequence[str]) -> Choice:
    """The first valid kernel in the stated order."""
    if not valid:
        reasons = tuple(reason for verdict in verdicts.values() for reason in verdict.reasons)
        replace(next(iter(verdicts.values())), reasons=reasons).check()

    def order(name: str) -> tuple[bool, bool]:
        offers = verdicts[name].offers or (verdicts[name].offer,)
        return name == "naive", any(offer is not None and offer.metadata == "O(S²)" for offer in offers)

    kernel = min(valid, key=order)
    reason = (
        f"the first valid kernel. No measurement on {asked.device_name} says how fast the valid kernels are; "
        "`longca run` measures them"
    )
    return Choice(kernel, subject(asked.problem, kernel), reason)


def _predicted(asked: Asked, ranked: Sequence[Candidate]) -> Choice:
    """The first candidate that fits, or the first one if none fits."""
    too_large = _too_large(asked, ranked)
    fitting = ranked[len(too_large) :]
    winner, *others = fitting or ranked
    after = "Nothing else has a prediction"
    if others:
        after = f"Next is {others[0].kernel} with {interval(others[0].seconds, *others[0].interval)}"
    sentences = [after]
    if fitting:
        sentences += [f"{choice.kernel} is passed over: it needs {_memory(asked, choice)}" for choice in too_large]
    else:
        sentences.append(f"No choice fits into the memory. This one needs {_memory(asked, too_large[0])}")
    if asked.measured is not None:
        sentences.append(f"The times are from evidence {asked.measured_elsewhere}; `longca run` measures here")
    return explained(winner, subject(asked.problem, winner.kernel), sentences, bool(fitting))


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


def _too_large(asked: Asked, ranked: Sequence[Candidate]) -> list[Predicted]:
    """The candidates that do not fit into the memory, up to the first one that does."""
    if asked.capacity is None:
        return []
    choices = (candidate.choice(asked) for candidate in ranked)
    return list(takewhile(lambda choice: not choice.fits, choices))


def subject(problem: Problem, title: str) -> str:
    """A choice and the mask that it is for, in words."""
    return f"{title} for {problem.mask.label}{' in training' * (problem.direction == 'backward')}"


def interval(seconds: float, low: float, high: float) -> str:
    """A predicted time and its interval in words."""
    return f"{_time(seconds)} ({_time(low)} to {_time(high)})"


def explained(found: Candidate | Weighed, about: str, sentences: Sequence[str], fits: bool) -> Choice:
    """A prediction as a choice with its reason: the time and its evidence, further sentences, and warnings.

    Args:
        found: The prediction.
        about: The subject of the choice.
        sentences: The further sentences.
        fits: Whether the choice fits into the memory.
    """
    proof = found.proof
    learnt = f"learnt from {proof.records} measured calls, the nearest in {proof.nearest}"
    said = [f"predicted to take {interval(found.seconds, *found.interval)}, {learnt}", *sentences]
    if proof.outside:
        said.append(f"The prediction extrapolates: {'; '.join(proof.outside)}")
    if proof.versions:
        said.append(f"The versions differ: {'; '.join(proof.versions)}")
    level = logging.WARNING if proof.outside or not fits else logging.INFO
    return Choice(found.kernel, about, ". ".join(said), level, sources().notes)


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _memory(asked: Asked, choice: Predicted) -> str:
    assert asked.capacity is not None, "without a capacity everything fits"
    return f"{choice.bytes_per_rank / 2**30:.1f} GiB of the device's {asked.capacity.usable / 2**30:.1f} GiB"
