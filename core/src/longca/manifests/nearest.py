"""The nearest offers: those that come closest to a problem, and their reasons in one place.

An offer that takes the mask's form is nearer than one that does not. Then fewer reasons are nearer. Among as many, an
offer that nobody verified is nearest. A reason against a size is nearer than one against the dtype, and both are nearer
than one against a feature, such as a backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from longca.manifests.offers import Offer
from longca.manifests.problem import Problem
from longca.manifests.verdict import Reason
from longca.plain_text import dims_text

__all__ = ["capabilities", "head_dims_taken", "nearest_reasons"]

#: An offer, with at least one reason against it.
Refusal = tuple[Offer, tuple[Reason, ...]]

#: Reasons against the features that a problem asks for, whatever its sizes and its dtype.
_FEATURES = {"gqa", "mask_heads", "composition", "sinks", "softcap", "direction", "deterministic"}


def nearest_reasons(name: str, refusals: Sequence[Refusal], problem: Problem) -> tuple[Reason, ...]:
    """The reasons of the nearest offer. Each quotes what all offers accept that are refused for the same things."""
    distances = [_distance(*refusal, problem) for refusal in refusals]
    near = [refusal for refusal, distance in zip(refusals, distances, strict=True) if distance == min(distances)]
    reasons = near[0][1]
    found = []
    for index, reason in enumerate(reasons):
        alike = [(offer, others[index]) for offer, others in near if _differ_in(index, reasons, others)]
        offered = _accepted(name, reason, alike, problem)
        if reason.code == "head_dim" and any(_takes_head_dim(others) for _, others in refusals):
            offered += " here"
        found.append(replace(reason, offered=offered))
    return tuple(found)


def _distance(offer: Offer, reasons: tuple[Reason, ...], problem: Problem) -> tuple[int, ...]:
    """The distance of an offer from a problem, the gravest part first."""
    codes = [reason.code for reason in reasons]
    features = sum(code in _FEATURES for code in codes)
    grave = "form" in codes, "device" in codes, not offer.runs_on(problem.device.kind)
    return (*grave, len(reasons), "unverified" not in codes, features, "dtype" in codes)


def _differ_in(index: int, reasons: tuple[Reason, ...], others: tuple[Reason, ...]) -> bool:
    """Whether the reasons against two offers are the same but for what one reason says is offered."""
    return len(others) == len(reasons) and all(
        (one.code, one.asked) == (other.code, other.asked) and (number == index or one == other)
        for number, (one, other) in enumerate(zip(reasons, others, strict=True))
    )


def _takes_head_dim(reasons: tuple[Reason, ...]) -> bool:
    """Whether an offer for this device takes the mask's form and the head dimension, and something else is refused."""
    return not {reason.code for reason in reasons} & {"form", "device", "unverified", "head_dim"}


def _accepted(name: str, reason: Reason, alike: Sequence[tuple[Offer, Reason]], problem: Problem) -> str:
    """The values that some offers accept, in words. All of the offers are refused for one reason."""
    accepts = _ACCEPTS.get(reason.code)
    if accepts is None or len({other.offered for _, other in alike}) == 1:
        return reason.offered
    return accepts(name, [offer for offer, _ in alike], problem) or reason.offered


def _dtypes(name: str, offers: Sequence[Offer], problem: Problem) -> str:
    return f"{name} takes {', '.join(dict.fromkeys(dtype for offer in offers for dtype in offer.dtypes))}"


def head_dims_taken(name: str, offers: Sequence[Offer], problem: Problem) -> str:
    """The head dimensions that some offers take, in words."""
    is_unequal, rules = len(set(problem.dims)) > 1, dict[int, float]()
    for offer in offers:
        if offer.head_dims is None:
            step = offer.head_dim_multiple
            rules[step] = max(rules.get(step, 0), offer.max_head_dim or inf)
    listed = {dim for offer in offers for dim in offer.head_dims or ()}
    singles = sorted(dim for dim in listed if isinstance(dim, int) and not _follows(dim, rules))
    pairs = [dims_text(*pair) for pair in sorted(dim for dim in listed if isinstance(dim, tuple))]
    parts = [", ".join(map(str, singles))] * bool(singles)
    parts += filter(None, (_rule(step, most) for step, most in sorted(rules.items())))
    is_equal = is_unequal and not any(offer.unequal_head_dims for offer in offers)
    if is_equal and (parts or not pairs):
        parts = [f"{' or '.join(parts)}, equal for q and v" if parts else "that are equal for q and v"]
    if is_unequal or not parts:
        parts += pairs
    return f"{name} takes head dimensions {' or '.join(parts)}"


def _follows(dim: int, rules: Mapping[int, float]) -> bool:
    return any(dim % step == 0 and dim <= most for step, most in rules.items())


def _rule(step: int, most: float) -> str:
    """A rule in words. A rule without bounds has none."""
    kind = f"that are multiples of {step}" * (step > 1)
    return f"{kind} up to {most:g}".strip() if most < inf else kind


def _lengths(name: str, offers: Sequence[Offer], problem: Problem) -> str:
    return f"{name} takes at most {max(offer.max_seqlen or 0 for offer in offers)} tokens here"


def _devices(name: str, offers: Sequence[Offer], problem: Problem) -> str:
    """The capabilities that offers need. On a CPU one offer's are enough."""
    return "" if problem.device.kind == "cpu" else f"{name} needs {capabilities(offers)}"


#: What some offers accept, for the reasons whose words have a range.
_ACCEPTS: dict[str, Callable[[str, Sequence[Offer], Problem], str]] = {
    "dtype": _dtypes, "head_dim": head_dims_taken, "lengths": _lengths, "device": _devices
}  # fmt: skip


def capabilities(offers: Sequence[Offer]) -> str:
    """The compute capabilities of some offers in words. It says which are verified and which are expected to work."""
    verified = dict.fromkeys(offer.verified_on for offer in offers if offer.verified_on)
    expected = dict.fromkeys(offer.expected_on for offer in offers if offer.expected_on)
    if not (verified and expected):
        return f"compute capability {' or '.join((*verified, *expected))}"
    return f"compute capability {' or '.join(verified)} (verified) or {' or '.join(expected)} (expected)"
