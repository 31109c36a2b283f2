"""Ranking kernels and pairs of kernels on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from longca.manifests import Direction, Problem, Verdict
from longca.manifests.pairs import halves, join
from longca_advice.asked import Asked
from longca_advice.choices import Choice, Proof, Refused, Seconds, Unmeasured
from longca_advice.costs import Estimate
from longca_advice.fit import Call
from longca_advice.memory import RankMemory, rank_bytes
from longca_advice.work import work_of

__all__ = [
    "Candidate",
    "Half",
    "Ranking",
    "advise",
    "choice_of",
    "pair_candidates",
    "proof_of",
    "rank_kernels",
    "single_candidates",
]


@dataclass(frozen=True)
class Ranking:
    """The ranked kernels, and the other kernels by their reasons.

    Attributes:
        choices: The choices with a prediction.
        unmeasured: The valid choices without a prediction.
        refused: The kernels that are not valid.
        notes: Further remarks, in sentences.
    """

    choices: tuple[Choice, ...]
    unmeasured: tuple[Unmeasured, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Half:
    """A kernel that is valid for one direction, and its prediction.

    Attributes:
        kernel: The kernel.
        estimate: Its predicted seconds in that direction.
    """

    kernel: str
    estimate: Estimate


@dataclass(frozen=True)
class Candidate:
    """A kernel or a pair of kernels that takes a problem and has a prediction.

    Attributes:
        halves: The kernel of the forward, and in training that of the backward.
    """

    halves: tuple[Half, ...]

    @property
    def kernel(self) -> str:
        """The name of the kernel, or of the pair."""
        return join(self.halves[0].kernel, self.halves[-1].kernel)

    @property
    def seconds(self) -> float:
        """The predicted time of all directions."""
        return sum(half.estimate.seconds for half in self.halves)

    @property
    def low(self) -> float:
        """Lower end of the interval that holds the time with 90 %."""
        return sum(half.estimate.low for half in self.halves)

    @property
    def high(self) -> float:
        """Upper end."""
        return sum(half.estimate.high for half in self.halves)

    @property
    def proof(self) -> Proof:
        """The evidence behind the prediction."""
        return proof_of([half.estimate for half in self.halves])


def rank_kernels(asked: Asked) -> Ranking:
    """The kernels that take a problem on one device, and their pairs.

    A pair is listed where it is quicker than either of its kernels alone.

    Args:
        asked: What was asked.
    """
    problem = replace(asked.problem, direction=Direction.BACKWARD if asked.training else Direction.FORWARD)
    verdicts = {name: asked.resolve(name, problem) for name in asked.kernels}
    alone = single_candidates(asked, verdicts)
    measured = {candidate.kernel for candidate in alone}
    choices = tuple(choice_of(asked, candidate) for candidate in (*alone, *pair_candidates(asked, alone)))
    why = f"no evidence of such a call on {asked.device_name}"
    unmeasured = tuple(
        Unmeasured(name, why, None, asked.install(name, verdict))
        for name, verdict in verdicts.items()
        if verdict and name not in measured
    )
    refused = tuple(_refused(asked, name, verdict) for name, verdict in verdicts.items() if not verdict)
    return Ranking(choices, unmeasured, refused)


def single_candidates(asked: Asked, verdicts: Mapping[str, Verdict]) -> list[Candidate]:
    """The kernels that take a problem alone and have a prediction for each direction, in the order of the verdicts.

    Args:
        asked: What was asked.
        verdicts: Whether each kernel takes the problem, by kernel.
    """
    found = []
    for name, verdict in verdicts.items():
        halves_of = (_half(asked, name, verdict, direction) for direction in asked.directions if verdict)
        known = tuple(half for half in halves_of if half is not None)
        if len(known) == len(asked.directions):
            found.append(Candidate(known))
    return found


def pair_candidates(asked: Asked, alone: Iterable[Candidate]) -> Iterator[Candidate]:
    """Pairs that are faster than each of their kernels alone, or whose kernels do not do alone.

    Args:
        asked: The question. Without training there are no pairs.
        alone: The kernels that can compute the problem alone.
    """
    if not asked.training:
        return
    seconds = {candidate.kernel: candidate.seconds for candidate in alone}
    found: list[list[Half]] = []
    for half, direction in zip(halves(asked.problem), asked.directions, strict=True):
        measured = [name for name in asked.kernels if asked.costs.knows(asked.key(name, direction))]
        verdicts = ((name, asked.resolve(name, half)) for name in measured)
        valid = (_half(asked, name, verdict, direction) for name, verdict in verdicts if verdict)
        found.append([one for one in valid if one is not None])
    for pair in product(*found):
        candidate = Candidate(pair)
        if pair[0].kernel != pair[1].kernel and candidate.seconds < min(
            seconds.get(half.kernel, float("inf")) for half in pair
        ):
            yield candidate


def _half(asked: Asked, kernel: str, verdict: Verdict, direction: str) -> Half | None:
    """A kernel with its prediction, or None without a prediction."""
    assert verdict.offer is not None, "a kernel that is valid on one device has one offer"
    problem = asked.problem
    call = Call(work_of(problem.concrete_mask, verdict.offer.form), problem.heads_q, problem.num_heads_kv)
    estimate = asked.costs.estimate(asked.key(kernel, direction), call)
    return None if estimate is None else Half(kernel, estimate)


def choice_of(asked: Asked, candidate: Candidate) -> Choice:
    """A candidate as a choice, with its memory.

    Args:
        asked: What was asked.
        candidate: A kernel or a pair that takes it.
    """
    estimates = [half.estimate for half in candidate.halves]
    forward, backward = candidate.halves[0].kernel, candidate.halves[1].kernel if asked.training else None
    memory = _memory(asked, forward, backward)
    total = candidate.seconds
    flops = asked.flops
    return Choice(
        forward=forward,
        backward=backward,
        seconds=Seconds(
            forward=estimates[0].seconds,
            backward=estimates[1].seconds if asked.training else None,
            total=total,
            low=candidate.low,
            high=candidate.high,
            intervals=tuple((estimate.low, estimate.high) for estimate in estimates),
        ),
        bytes_per_rank=memory.total,
        fits=asked.fits(memory.total),
        proof=candidate.proof,
        call=f"longca.attention(q, k, v, mask, kernel={candidate.kernel!r})",
        tflops=1e-12 * flops / total,
        install=asked.install_of(forward, backward),
        unknown=memory.unknown,
    )


def proof_of(estimates: list[Estimate]) -> Proof:
    """The joint evidence behind several estimates."""
    weakest = min(estimates, key=lambda estimate: estimate.records)
    outside = dict.fromkeys(text for estimate in estimates for text in estimate.outside)
    versions = dict.fromkeys(text for estimate in estimates for text in estimate.versions)
    return Proof(weakest.records, weakest.nearest, tuple(outside), tuple(versions))


def _memory(asked: Asked, forward: str, backward: str | None) -> RankMemory:
    return rank_bytes(
        asked.registry, asked.problem, forward, backward, training=asked.training, anywhere=asked.anywhere
    )


def _refused(asked: Asked, name: str, verdict: Verdict) -> Refused:
    return Refused(name, None, tuple(str(reason) for reason in verdict.reasons), advise(asked.problem, verdict))


def advise(problem: Problem, verdict: Verdict) -> str:
    """The known remedy for a refusal. Empty if the reasons say enough."""
    codes = {reason.code for reason in verdict.reasons}
    if "direction" in codes and problem.direction == "backward":
        return f"Pair it with a backward of another kernel: kernel='{verdict.kernel}+...'"
    if "mask_heads" in codes:
        return "Give all heads one mask, or take a kernel with masks per head."
    if "gqa" in codes:
        return "Repeat keys and values for each query head, or take a kernel with GQA."
    return ""
