"""Choosing a kernel: by what was measured here, else in a stated order.

By measurement: of the problems in this machine's history that have the same device, dtype and directions, the nearest
one on which a kernel that is valid now was measured; and on it the fastest of these kernels. Near is a small sum of
|log₂| ratios of sequence length, density, head dimension and heads, with a mask of the same pattern.

Without measurements: kernels whose mask metadata is not quadratic come first, `naive` last, and otherwise the order
is that of `longca plugins`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from longca.kernels.history import Entry, entries
from longca.manifests import Problem, Verdict
from longca.plugins import Registry

__all__ = ["Choice", "choose"]

_Point = tuple[str | None, int, float, int, int, int]


@dataclass(frozen=True)
class Choice:
    """The kernel chosen, and why."""

    kernel: str
    announcement: str


def choose(problem: Problem, registry: Registry, verdicts: Mapping[str, Verdict] | None = None) -> Choice:
    """The kernel to run a problem with.

    Args:
        problem: What is asked.
        registry: Whose kernels to choose from.
        verdicts: Whether each kernel takes it, where that is more than the registry says of the problem alone: under
            context parallelism.

    Raises:
        UnsupportedError: No kernel takes it; the message gives each one's reasons.
    """
    verdicts = verdicts or {name: registry.resolve(name, problem) for name in registry.kernels}
    valid = [name for name, verdict in verdicts.items() if verdict]
    if not valid:
        reasons = tuple(reason for verdict in verdicts.values() for reason in verdict.reasons)
        replace(next(iter(verdicts.values())), reasons=reasons).check()
    label = problem.mask.label
    if (measured := _fastest(problem, valid)) is not None:
        kernel, point = measured
        return Choice(kernel, f"attention: {kernel} for {label}: the fastest measured here on {point}")

    def order(name: str) -> tuple[bool, bool]:
        verdict = verdicts[name]
        offers = verdict.offers or (verdict.offer,)
        return name == "naive", any(offer is not None and offer.metadata == "O(S²)" for offer in offers)

    kernel = min(valid, key=order)
    return Choice(
        kernel, f"attention: {kernel} for {label}: the first valid kernel; `longca run` measures which is fastest"
    )


def _fastest(problem: Problem, valid: list[str]) -> tuple[str, str] | None:
    """The fastest valid kernel on the nearest point where all directions were measured, and the point in words."""
    directions = {"forward"} if problem.direction == "forward" else {"forward", "backward"}
    now = Entry.of("", problem, 0.0)
    points: dict[_Point, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for entry in entries():
        comparable = (entry.device, entry.dtype) == (now.device, now.dtype) and entry.pattern == now.pattern
        if comparable and entry.kernel in valid and entry.direction in directions:
            points[_point(entry)][entry.kernel][entry.direction] = entry.seconds
    nearest: tuple[float, str, _Point] | None = None
    for point, kernels in points.items():
        whole = {name: sum(times.values()) for name, times in kernels.items() if set(times) == directions}
        if whole and (nearest is None or _distance(point, _point(now)) < nearest[0]):
            nearest = _distance(point, _point(now)), min(whole, key=whole.__getitem__), point
    if nearest is None:
        return None
    pattern, seqlen, _, heads_q, heads_kv, head_dim = nearest[2]
    return nearest[1], f"{pattern or 'a mask'} of {seqlen} tokens, heads {heads_q}:{heads_kv}, head_dim {head_dim}"


def _point(entry: Entry) -> _Point:
    return entry.pattern, entry.seqlen, entry.density, entry.heads_q, entry.heads_kv, entry.head_dim


def _distance(a: _Point, b: _Point) -> float:
    return sum(abs(math.log2(max(x, 1e-9) / max(y, 1e-9))) for x, y in zip(a[1:], b[1:], strict=True))
