"""Ranking kernels and pairs of kernels on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from longca.advice.asked import Asked
from longca.advice.choices import Choice, Proof, Refused, Seconds, Unmeasured
from longca.advice.costs import Estimate
from longca.advice.fit import Call
from longca.advice.memory import RankMemory, rank_bytes
from longca.advice.work import work_of
from longca.manifests import Problem, Verdict
from longca.manifests.pairs import halves, join
from longca.masks import Form

__all__ = ["Ranking", "advise", "rank_kernels"]


@dataclass(frozen=True)
class Ranking:
    """What was found.

    Attributes:
        choices: What has a prediction.
        unmeasured: What is valid without one.
        refused: What is not valid.
    """

    choices: tuple[Choice, ...]
    unmeasured: tuple[Unmeasured, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True)
class _Half:
    """A kernel that is valid for one direction, and its prediction."""

    kernel: str
    form: Form
    estimate: Estimate | None


def rank_kernels(asked: Asked) -> Ranking:
    """The kernels that take a problem on one device, and their pairs.

    A pair is listed where it is quicker than either of its kernels alone.

    Args:
        asked: What was asked.
    """
    problem = replace(asked.problem, direction="backward" if asked.training else "forward")
    verdicts = {name: asked.resolve(name, problem) for name in asked.kernels}
    choices, unmeasured = [], []
    for name, verdict in verdicts.items():
        if not verdict:
            continue
        found = [_half(asked, name, verdict, direction) for direction in asked.directions]
        if all(half.estimate is not None for half in found):
            choices.append(_choice(asked, found))
        else:
            why = f"no evidence on {asked.device_name}"
            unmeasured.append(Unmeasured(name, why, None, asked.install(name, verdict)))
    if asked.training:
        choices += _pairs(asked, {choice.kernel: choice.seconds.total for choice in choices})
    refused = [_refused(asked, name, verdict) for name, verdict in verdicts.items() if not verdict]
    return Ranking(tuple(choices), tuple(unmeasured), tuple(refused))


def _half(asked: Asked, kernel: str, verdict: Verdict, direction: str) -> _Half:
    assert verdict.offer is not None, "a kernel that is valid on one device has one offer"
    form = verdict.offer.form
    problem = asked.problem
    call = Call(work_of(problem.concrete_mask, form), problem.heads_q, problem.num_heads_kv)
    return _Half(kernel, form, asked.costs.estimate(asked.key(kernel, direction), call))


def _pairs(asked: Asked, alone: Mapping[str, float]) -> Iterator[Choice]:
    """Pairs that are quicker than each of their kernels alone, or whose kernels do not do alone."""
    found: list[list[_Half]] = []
    for half, direction in zip(halves(asked.problem), asked.directions, strict=True):
        verdicts = ((name, asked.resolve(name, half)) for name in asked.kernels)
        valid = (_half(asked, name, verdict, direction) for name, verdict in verdicts if verdict)
        found.append([one for one in valid if one.estimate is not None])
    for forward, backward in product(*found):
        if forward.kernel == backward.kernel:
            continue
        assert forward.estimate is not None
        assert backward.estimate is not None
        total = forward.estimate.seconds + backward.estimate.seconds
        if total < min(alone.get(name, float("inf")) for name in (forward.kernel, backward.kernel)):
            yield _choice(asked, [forward, backward])


def _choice(asked: Asked, found: list[_Half]) -> Choice:
    estimates = [half.estimate for half in found if half.estimate is not None]
    forward, backward = found[0].kernel, found[1].kernel if asked.training else None
    name = join(forward, backward or forward)
    memory = _memory(asked, forward, backward)
    total = sum(estimate.seconds for estimate in estimates)
    flops = asked.flops
    return Choice(
        forward=forward,
        backward=backward,
        seconds=Seconds(
            forward=estimates[0].seconds,
            backward=estimates[1].seconds if asked.training else None,
            total=total,
            low=sum(estimate.low for estimate in estimates),
            high=sum(estimate.high for estimate in estimates),
            intervals=tuple((estimate.low, estimate.high) for estimate in estimates),
        ),
        bytes_per_rank=memory.total,
        fits=asked.fits(memory.total),
        proof=proof_of(estimates),
        call=f"longca.attention(q, k, v, mask, kernel={name!r})",
        tflops=1e-12 * flops / total,
        install=asked.install_of(forward, backward),
        unknown=memory.unknown,
    )


def proof_of(estimates: list[Estimate]) -> Proof:
    """What several estimates rest on together."""
    weakest = min(estimates, key=lambda estimate: estimate.records)
    outside = dict.fromkeys(text for estimate in estimates for text in estimate.outside)
    versions = dict.fromkeys(text for estimate in estimates for text in estimate.versions)
    return Proof(weakest.records, weakest.nearest, tuple(outside), tuple(versions))


def _memory(asked: Asked, forward: str, backward: str | None) -> RankMemory:
    return rank_bytes(asked.registry, asked.problem, forward, backward, training=asked.training, anywhere=True)


def _refused(asked: Asked, name: str, verdict: Verdict) -> Refused:
    return Refused(name, None, tuple(str(reason) for reason in verdict.reasons), advise(asked.problem, verdict))


def advise(problem: Problem, verdict: Verdict) -> str:
    """What the field knows to do about a refusal; empty where the reasons say all."""
    codes = {reason.code for reason in verdict.reasons}
    if "direction" in codes and problem.direction == "backward":
        return f"Pair it with a backward of another kernel: kernel='{verdict.kernel}+...'"
    if "mask_heads" in codes:
        return "Give all heads one mask, or take a kernel with masks per head."
    if "gqa" in codes:
        return "Repeat keys and values for each query head, or take a kernel with GQA."
    return ""
