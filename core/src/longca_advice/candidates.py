"""Candidates: kernels for a problem with their predicted times, and the ranking of kernels and pairs on one device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from longca.manifests import Direction, Layout, Problem, Verdict
from longca.manifests.pairs import halves, join, split
from longca_advice.choices import Choice, Proof, Refused, Seconds, Unmeasured
from longca_advice.costs import Estimate
from longca_advice.fit import Call
from longca_advice.memory import RankMemory
from longca_advice.request import Request
from longca_advice.why import why_first
from longca_advice.work import work_of

__all__ = [
    "PAIR",
    "Candidate",
    "Ranking",
    "advise",
    "pair_candidates",
    "proof_of",
    "rank_kernels",
    "single_candidates",
]

#: The largest part of the time of each of its kernels alone that a pair may take. Equal runs differ by about as much as
#: a smaller gain, and a single kernel needs one package.
PAIR = 0.99


@dataclass(frozen=True)
class Ranking:
    """The ranked choices, the valid ones without a prediction, what is not valid, remarks, and why the first leads."""

    choices: tuple[Choice, ...]
    unmeasured: tuple[Unmeasured, ...]
    refused: tuple[Refused, ...]
    notes: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A kernel for each direction that takes a problem, with the estimates of its calls."""

    request: Request
    kernels: tuple[str, ...]
    estimates: tuple[Estimate, ...]

    @property
    def kernel(self) -> str:
        """The name of the kernel, or of the pair."""
        return join(self.kernels[0], self.kernels[-1])

    @property
    def title(self) -> str:
        """The candidate in a few words."""
        return self.kernel

    @property
    def each(self) -> tuple[float, ...]:
        """Seconds of each direction."""
        return tuple(estimate.seconds for estimate in self.estimates)

    @property
    def seconds(self) -> float:
        """Seconds of all directions."""
        return sum(self.each)

    @property
    def ranked(self) -> float:
        """Seconds to rank it by. An unseen direction counts as slow as its interval allows."""
        return sum(estimate.ranked for estimate in self.estimates)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval that holds the time of all directions with 90 %."""
        return sum(estimate.low for estimate in self.estimates), sum(estimate.high for estimate in self.estimates)

    @property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """The interval of each direction, if known."""
        return tuple((estimate.low, estimate.high) for estimate in self.estimates)

    def causes(self, place: int) -> Mapping[str, float]:
        """The seconds of a direction by cause. Empty if its time is not predicted."""
        return self.estimates[place].parts

    @property
    def proof(self) -> Proof:
        """The evidence behind the prediction."""
        return proof_of(self.estimates)

    @property
    def layout(self) -> Layout | None:
        """The layout by which ranks share the problem. None on one device."""
        return None

    @cached_property
    def memory(self) -> RankMemory:
        """The memory of a call on the rank that needs most."""
        return self.request.memory(self.kernels, self.layout)

    @property
    def fits(self) -> bool:
        """Whether the device has the memory, as far as it is known."""
        return self.request.fits(self.memory.total) is not False

    @property
    def call(self) -> str:
        """The lines to paste, without the closing parenthesis."""
        return f"longca.attention(q, k, v, mask, kernel={self.kernel!r}"

    def choice(self) -> Choice:
        """The candidate as a choice.

        Raises:
            UnsupportedError: A kernel does not take a step that was not checked before.
        """
        request, memory, each, problem = self.request, self.memory, self.each, self.request.problem
        unverified = request.unverified(self.kernel, self.layout)
        lacks, install = request.lacks({name: Verdict(name) for name in self.kernels})
        backward = each[1] if request.training else None
        seconds = Seconds(each[0], backward, self.seconds, *self.interval, self.intervals, self.ranked)
        factors = {"softmax_scale": problem.softmax_scale, "softcap": problem.softcap}
        settings = [f", {name}={value:.6g}" for name, value in factors.items() if value is not None]
        settings += [", sinks=sinks"] * problem.sinks + [", allow_unverified=True"] * unverified
        return Choice(
            forward=self.kernels[0],
            backward=self.kernels[1] if request.training else None,
            seconds=seconds,
            bytes_per_rank=memory.total,
            fits=request.fits(memory.total),
            proof=self.proof,
            call="".join([self.call, *settings, ")"]),
            tflops=1e-12 * request.flops / self.seconds,
            install=install,
            lacks=lacks,
            unknown=memory.unknown,
            unverified=unverified,
        )


def rank_kernels(request: Request) -> Ranking:
    """The kernels that take a problem on one device, and their pairs.

    A pair is listed where it is clearly quicker than either of its kernels alone, or if it was asked for by name.
    """
    problem = request.problem.in_direction(Direction.BACKWARD if request.training else Direction.FORWARD)
    named = (*request.kernels, *(join(*pair) for pair in request.pairs))
    verdicts = {name: request.resolve(name, problem) for name in named}
    alone = single_candidates(request, {name: verdicts[name] for name in request.kernels})
    candidates = [*alone, *pair_candidates(request, alone)]
    measured = {candidate.kernel for candidate in candidates}
    ordered = sorted(candidates, key=lambda candidate: candidate.ranked)
    choices = tuple(candidate.choice() for candidate in ordered)
    why = f"no evidence of such a call on {request.device_name}"
    unmeasured = tuple(
        Unmeasured(name, why, None, *_lacks(request, name, verdict), verdict.unverified)
        for name, verdict in verdicts.items()
        if verdict and name not in measured
    )
    refused = tuple(_refused(request, name, verdict) for name, verdict in verdicts.items() if not verdict)
    return Ranking(choices, unmeasured, refused, why=why_first(ordered))


def single_candidates(request: Request, verdicts: Mapping[str, Verdict]) -> list[Candidate]:
    """The kernels whose verdict is valid and that have a prediction for each direction, in the verdicts' order."""
    found = []
    for name, verdict in verdicts.items():
        estimates = (_estimate(request, name, verdict, direction) for direction in request.directions if verdict)
        known = tuple(estimate for estimate in estimates if estimate is not None)
        if len(known) == len(request.directions):
            found.append(Candidate(request, (name,) * len(known), known))
    return found


def pair_candidates(request: Request, alone: Iterable[Candidate]) -> Iterator[Candidate]:
    """Pairs that are faster than each of their kernels alone, or whose kernels do not do alone, or that were named.

    Without training there are no pairs.
    """
    if not request.training:
        return
    singles = {candidate.kernel: candidate for candidate in alone}
    found: list[list[tuple[str, Estimate]]] = []
    for half, direction in zip(halves(request.problem), request.directions, strict=True):
        measured = [name for name in request.kernels_in(direction) if request.costs.knows(request.key(name, direction))]
        verdicts = ((name, request.resolve(name, half)) for name in measured)
        valid = ((name, _estimate(request, name, verdict, direction)) for name, verdict in verdicts if verdict)
        found.append([(name, estimate) for name, estimate in valid if estimate is not None])
    for pair in product(*found):
        names, estimates = zip(*pair, strict=True)
        candidate = Candidate(request, names, estimates)
        if len(set(names)) < 2 or not request.allows(names):
            continue
        halves_alone = [singles[name] for name in names if name in singles]
        gains = (
            candidate.seconds < PAIR * single.seconds and candidate.ranked < PAIR * single.ranked
            for single in halves_alone
        )
        if names in request.pairs or all(gains):
            yield candidate


def _estimate(request: Request, kernel: str, verdict: Verdict, direction: str) -> Estimate | None:
    """The predicted seconds of a valid kernel in one direction, or None without evidence."""
    assert verdict.offer is not None, "a kernel that is valid on one device has one offer"
    problem = request.problem
    call = Call(work_of(problem.concrete_mask, verdict.offer.form), problem.heads_q, problem.num_heads_kv)
    return request.costs.estimate(request.key(kernel, direction), call)


def proof_of(estimates: Sequence[Estimate]) -> Proof:
    """The joint evidence behind several estimates."""
    if not estimates:
        return Proof(0, "")
    weakest = min(estimates, key=lambda estimate: estimate.records)
    outside = dict.fromkeys(text for estimate in estimates for text in estimate.outside)
    versions = dict.fromkeys(text for estimate in estimates for text in estimate.versions)
    return Proof(weakest.records, weakest.nearest, tuple(outside), tuple(versions))


def _lacks(request: Request, name: str, verdict: Verdict) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The commands that install what a kernel or a pair lacks here, and what that is in words."""
    lacks, install = request.lacks(dict(zip(split(name) or (name,), verdict.halves or (verdict,), strict=False)))
    return install, lacks


def _refused(request: Request, name: str, verdict: Verdict) -> Refused:
    return Refused(name, None, tuple(str(reason) for reason in verdict.reasons), advise(request.problem, verdict))


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
