"""Memory: the bytes that one attention call takes on a rank at its peak, in parts, without torch and without a device.

The bytes of tensors and gradients follow from shapes. A strategy states its buffers, because they follow from shapes
too. A kernel's workspace and plan are learnt from the peaks of measured calls, unless its manifest names a function.
A part that neither states counts as 0 and is listed in `unknown`, so that the total is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2, prod
from typing import NamedTuple

import numpy as np

from longca.manifests import Direction, Layout, Problem, Transport
from longca.manifests.offers import DTYPE_BYTES
from longca.manifests.pairs import halves
from longca.manifests.step_cuts import rank_areas, step_problems
from longca.manifests.strategy import StrategyMemory
from longca.masks import PATTERNS, Form
from longca.plugins import Registry
from longca_advice.evidence import Row
from longca_advice.fit import robust
from longca_advice.work import TILE, Work, work_of

__all__ = ["KernelMemory", "RankMemory", "gradient_bytes", "held_bytes", "rank_bytes", "tensor_bytes"]

#: The limit of steps for finding the rank with the largest area. In larger layouts the last rank counts as that rank.
_LOOKED_AT = 2**14

#: Classes of areas in each octave. In large layouts, steps whose areas have the same class count as alike.
_ALIKE = 8

#: Measured calls of one form from which its memory is learnt without other forms.
_ENOUGH = 3

#: Relative errors below this are noise.
_NOISE = 0.01


@dataclass(frozen=True)
class RankMemory:
    """The bytes that one attention call takes on the rank that needs most, at its peak.

    Attributes:
        parts: Bytes by name, at the moment of the peak: `tensors` (q, k, v, out and lse, in training also dout),
            `gradients` (dq, dk, dv), `plan`, `workspace` of the kernel, `strategy`, and `kept` between a strategy's
            forward and its backward.
        unknown: The parts that nobody states and nobody measured. They count as 0.
    """

    parts: Mapping[str, int]
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())


class _Shape(NamedTuple):
    """The shape of a call: tokens, heads, head dimension, bytes of an element, and heads with a mask of their own."""

    tokens_q: int
    tokens_k: int
    heads_q: int
    heads_kv: int
    head_dim: int
    element: int
    masks: int

    @classmethod
    def of(cls, problem: Problem) -> _Shape:
        mask, heads = problem.concrete_mask, (problem.heads_q, problem.num_heads_kv)
        return cls(mask.seqlen_q, mask.seqlen_k, *heads, problem.head_dim, DTYPE_BYTES[problem.dtype], mask.heads)

    @classmethod
    def of_row(cls, row: Row) -> _Shape:
        work = row.call_work
        tokens_k = row.seqlen if work.cells == work.tokens**2 else round(work.cells / work.tokens) * TILE
        masks = row.heads_kv if row.pattern is not None and PATTERNS[row.pattern].per_head else 1
        return cls(row.seqlen, tokens_k, row.heads_q, row.heads_kv, row.head_dim, DTYPE_BYTES[row.dtype], masks)

    @property
    def q(self) -> int:
        """Bytes of the queries."""
        return self.tokens_q * self.heads_q * self.head_dim * self.element

    @property
    def k(self) -> int:
        """Bytes of the keys."""
        return self.tokens_k * self.heads_kv * self.head_dim * self.element

    @property
    def lse(self) -> int:
        """Bytes of the log-sum-exp."""
        return self.tokens_q * self.heads_q * max(4, self.element)

    def results(self, direction: str) -> int:
        """Bytes of the results of a direction."""
        return self.q + self.lse if direction == "forward" else self.q + 2 * self.k


class _Measured(NamedTuple):
    """A measured call: its shape, its work, and the bytes of its results, its peak and its plan."""

    shape: _Shape
    work: Work
    results: int
    peak: int
    plan: int | None


class KernelMemory:
    """The workspace and the plan of kernels' calls on GPUs, learnt from measured peaks.

    Args:
        rows: The evidence. Rows without a peak and rows of several ranks are passed over.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._measured: dict[tuple[str, str], list[_Measured]] = {}
        for row in rows:
            if row.strategy is None and row.peak is not None and row.run.capability is not None:
                shape = _Shape.of_row(row)
                about = shape, row.call_work, shape.results(row.direction), row.peak, row.plan
                self._measured.setdefault((row.kernel, row.direction), []).append(_Measured(*about))
        self._weights = lru_cache(maxsize=1024)(self._fit)

    def predicted(self, part: str, kernel: str, problem: Problem, work: Work) -> int | None:
        """Bytes of a part of a kernel's memory. None without measurements, as for a CPU.

        Args:
            part: `workspace` for what a call allocates beyond its inputs and results, or `plan` for its plan.
            kernel: The kernel.
            problem: The problem, in a direction.
            work: The work of its call.
        """
        if problem.device.kind != "cuda":
            return None
        weights = self._weights(part, kernel, str(problem.direction), work.path, work.family)
        return None if weights is None else round(float(np.dot(_FEATURES[part](_Shape.of(problem), work), weights)))

    def peak_of(self, row: Row) -> float | None:
        """The predicted peak of a call above its inputs, to compare with a measured one. None without measurements."""
        shape, work = _Shape.of_row(row), row.call_work
        weights = self._weights("workspace", row.kernel, row.direction, work.path, work.family)
        if weights is None:
            return None
        return shape.results(row.direction) + float(np.dot(_workspace_features(shape, work), weights))

    def _fit(
        self, part: str, kernel: str, direction: str, path: str, family: str
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
        """The bytes for each unit of a feature, from the calls of the same path or else of the most similar ones."""
        known = [one for one in self._measured.get((kernel, direction), ()) if part != "plan" or one.plan is not None]
        kind = family.partition("/")[0]
        groups = (
            [one for one in known if one.work.path == path],
            [one for one in known if one.work.family == family],
            [one for one in known if one.work.family.partition("/")[0] == kind],
            known,
        )
        calls = next((group for group in groups if len(group) >= _ENOUGH), known)
        if not calls:
            return None
        table = np.array([_FEATURES[part](one.shape, one.work) for one in calls], np.float64)
        wanted = [one.peak - one.results if part == "workspace" else one.plan for one in calls]
        whole = np.array([one.peak for one in calls], np.float64)
        return robust(table / whole[:, None], np.array(wanted, np.float64) / whole, _NOISE)


def _workspace_features(shape: _Shape, work: Work) -> Sequence[float]:
    group, layers = shape.heads_q // shape.heads_kv, work.calls - 1
    is_sparse, row = work.path.startswith("block_sparse"), shape.heads_q * shape.head_dim * shape.element
    return (
        shape.q,
        shape.k,
        shape.lse,
        shape.k * (group > 1),
        shape.k * group * (group > 1),  # keys for each query head
        shape.q * layers,
        shape.k * layers,
        work.merged * TILE * row,
        work.tiles * TILE**2 * shape.heads_q * shape.element * is_sparse,  # stored scores
    )


def _plan_features(shape: _Shape, work: Work) -> Sequence[float]:
    tokens, dense = shape.tokens_q + shape.tokens_k, work.cells * TILE**2 * (work.path == Form.DENSE)
    heads, is_sparse = shape.heads_q if shape.masks > 1 else 1, work.path.startswith("block_sparse")
    return (
        shape.tokens_q * (not is_sparse),
        shape.tokens_q * work.calls * (work.calls > 1),
        tokens * shape.masks / TILE,
        tokens * heads / TILE,
        work.tiles * shape.masks,
        work.tiles * heads,
        work.cells * heads * is_sparse,  # tables of all blocks
        dense * shape.element * heads,
    )


_FEATURES: Mapping[str, Callable[[_Shape, Work], Sequence[float]]] = {
    "workspace": _workspace_features,
    "plan": _plan_features,
}


@dataclass(frozen=True)
class _Calls:
    """The memory of one kernel in a rank's steps: bytes of all plans, and the largest workspace."""

    plan: int = 0
    workspace: int = 0
    unknown: tuple[str, ...] = ()


def rank_bytes(
    registry: Registry,
    learnt: KernelMemory,
    problem: Problem,
    forward: str,
    backward: str | None = None,
    strategy: str | None = None,
    axis_sizes: Mapping[str, int] | None = None,
    layout: Layout | None = None,
    training: bool = False,
    nccl: bool = True,
    anywhere: bool = False,
    transport: Transport = Transport.AUTO,
) -> RankMemory:
    """The bytes that one attention call takes on a rank.

    Args:
        registry: Knows the kernels and the strategy.
        learnt: Knows the memory of measured kernels.
        problem: The problem of all ranks together, in any direction.
        forward: The kernel that computes the forward.
        backward: The kernel that computes the backward in training, or None for the forward's kernel.
        strategy: The context-parallel strategy, or None for one device.
        axis_sizes: Ranks along each of the strategy's axes.
        layout: The strategy's layout, or None for the layout of its default placement.
        training: Whether a backward follows. The result is the larger of both moments.
        nccl: Whether NCCL moves the tensors of the strategy's collectives.
        anywhere: Whether a kernel stays valid when its packages are missing here.
        transport: The way in which the strategy moves tensors.

    Raises:
        UnknownNameError: Nobody provides a kernel or the strategy.
        UnsupportedError: A kernel does not take a step.
        PluginError: A function that a manifest names cannot be imported, or returns something else.
    """
    sizes = dict(axis_sizes or {})
    if strategy is not None and layout is None:
        layout = registry.layout(strategy, problem, sizes)
    paired = backward is not None and backward != forward
    directions = problem.in_direction(Direction.FORWARD), problem.in_direction(Direction.BACKWARD)
    before, after = halves(problem) if paired else directions
    tokens = _tokens(problem, layout)
    # A single kernel has one plan for both directions.
    first = _calls(registry, learnt, forward, before, layout, anywhere, planned=paired or not training)
    second = _calls(registry, learnt, backward or forward, after, layout, anywhere) if training else _Calls()
    around = _around(registry, strategy, problem, sizes, nccl, transport)
    tensors, gradients = tensor_bytes(problem, *tokens, training=training), gradient_bytes(problem, *tokens)
    out = tokens[0] * problem.heads_q * problem.head_dim * DTYPE_BYTES[problem.dtype]
    held = {"tensors": tensors, "plan": first.plan + second.plan}
    kept = around.kept if around and training else 0
    moments = [_moment(held, 0, first.workspace, around.forward - out if around else 0, kept)]
    if training:
        moments.append(_moment(held, gradients, second.workspace, around.backward - gradients if around else 0, kept))
    unknown = (*first.unknown, *second.unknown)
    if strategy is not None and around is None:
        unknown = (*unknown, f"memory of {strategy}")
    return RankMemory(max(moments, key=lambda parts: sum(parts.values())), tuple(dict.fromkeys(unknown)))


def tensor_bytes(problem: Problem, tokens_q: int, tokens_k: int, *, training: bool = False) -> int:
    """Bytes of q, k, v, out and lse, and in training also of dout.

    Args:
        problem: Gives heads, head dimension and data type. The mask is not used.
        tokens_q: Queries on the rank.
        tokens_k: Keys on the rank.
        training: Whether a backward follows.
    """
    row = problem.head_dim * DTYPE_BYTES[problem.dtype]
    queries = (3 if training else 2) * row + max(4, DTYPE_BYTES[problem.dtype])
    return tokens_q * problem.heads_q * queries + 2 * tokens_k * problem.num_heads_kv * row


def gradient_bytes(problem: Problem, tokens_q: int, tokens_k: int) -> int:
    """Bytes of dq, dk and dv. The arguments are those of `tensor_bytes`."""
    row = problem.head_dim * DTYPE_BYTES[problem.dtype]
    return row * (tokens_q * problem.heads_q + 2 * tokens_k * problem.num_heads_kv)


def held_bytes(problem: Problem, tokens_q: int, tokens_k: int, *, training: bool) -> int:
    """Bytes of all tensors, and in training also of the gradients. The arguments are those of `tensor_bytes`."""
    gradients = gradient_bytes(problem, tokens_q, tokens_k) if training else 0
    return tensor_bytes(problem, tokens_q, tokens_k, training=training) + gradients


def _tokens(problem: Problem, layout: Layout | None) -> tuple[int, int]:
    """Queries and keys of the rank that holds most."""
    if layout is None:
        return problem.concrete_mask.seqlen_q, problem.concrete_mask.seqlen_k
    most = max(map(layout.shard_size, range(layout.world_size)))
    return most, most


def _moment(held: Mapping[str, int], gradients: int, workspace: int, strategy: int, kept: int) -> dict[str, int]:
    """The parts at one moment: the memory that is held throughout, and the memory of that moment."""
    parts = {**held, "gradients": gradients, "workspace": workspace, "strategy": max(0, strategy), "kept": kept}
    return {name: size for name, size in parts.items() if size}


def _around(
    registry: Registry,
    strategy: str | None,
    problem: Problem,
    sizes: Mapping[str, int],
    nccl: bool,
    transport: Transport,
) -> StrategyMemory | None:
    """The strategy's memory, or None without a strategy, or if the strategy does not state it."""
    if strategy is None or prod(sizes.values()) == 1:
        return None if strategy is None else StrategyMemory(0, 0)
    memory: StrategyMemory | None = registry.stated(strategy, "memory", problem, sizes, nccl, transport)
    return memory


def _calls(
    registry: Registry,
    learnt: KernelMemory,
    kernel: str,
    problem: Problem,
    layout: Layout | None,
    anywhere: bool,
    *,
    planned: bool = True,
) -> _Calls:
    """The memory of a kernel in a rank's steps or its only call.

    Strategies want gradients in their buffers. A kernel that does not fill them has its own gradients beside them.
    """
    manifest, plan, workspace, unknown = registry.manifest(kernel), 0, 0, dict[str, None]()
    for step, times in _steps(problem, layout):
        verdict = registry.resolve(kernel, step, anywhere=anywhere)
        verdict.check()
        assert verdict.offer is not None, "a kernel that takes a step has an offer for it"
        form, mask = verdict.offer.form, step.concrete_mask
        parts = {"workspace": 0, "plan": 0}
        for part, field in (("workspace", "workspace"), ("plan", "plan_bytes")):
            size: int | None
            if getattr(manifest, field) is not None:
                size = int(registry.call(manifest, field, step, form))
            else:
                size = learnt.predicted(part, kernel, step, work_of(mask, form))
            if size is None:
                unknown[f"{part} of {kernel}"] = None
            parts[part] = size or 0
        if layout is not None and step.direction is Direction.BACKWARD and not verdict.offer.fills_buffers:
            parts["workspace"] += gradient_bytes(step, mask.seqlen_q, mask.seqlen_k)
        plan += times * parts["plan"] if planned else 0
        workspace = max(workspace, parts["workspace"])
    return _Calls(plan, workspace, tuple(unknown))


def _steps(problem: Problem, layout: Layout | None) -> Iterator[tuple[Problem, int]]:
    """The steps of the rank with the largest area, and the count of each. Steps of equal size are merged.

    In large layouts, steps of nearly equal size are merged too, and count as the largest of them.
    """
    if layout is None:
        yield problem, 1
        return
    small = len(layout.table.table) <= _LOOKED_AT
    rank = int(np.argmax(rank_areas(problem, layout))) if small else layout.world_size - 1
    found: dict[tuple[int, ...], list[Problem]] = {}
    for step in step_problems(problem, layout)[rank]:
        if step is not None:
            mask = step.concrete_mask
            area = mask.area if small else round(_ALIKE * log2(mask.area))
            found.setdefault((step.heads_q, step.num_heads_kv, mask.seqlen_q, mask.seqlen_k, area), []).append(step)
    yield from ((max(steps, key=lambda step: step.area), len(steps)) for steps in found.values())
