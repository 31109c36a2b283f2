"""Memory: the bytes that one attention call takes on a rank at its peak, in parts, without torch and without a device.

The bytes of tensors and gradients follow from shapes. A strategy states its buffers, because they follow from shapes
too. A kernel's workspace and plan are learnt from the peaks of measured calls, unless its manifest names a function.
A part that neither states counts as 0 and is listed in `unknown`, so that the total is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2
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
    """The shape of a call: tokens, heads, head dimensions, bytes of an element, and heads with a mask of their own.

    q, k and lse are the bytes of the queries, of the keys and of the log-sum-exp.
    """

    tokens_q: int
    tokens_k: int
    heads_q: int
    heads_kv: int
    head_dims: tuple[int, int]
    element: int
    masks: int

    @classmethod
    def of(cls, problem: Problem) -> _Shape:
        mask, heads = problem.concrete_mask, (problem.heads_q, problem.num_heads_kv)
        return cls(mask.seqlen_q, mask.seqlen_k, *heads, problem.dims, DTYPE_BYTES[problem.dtype], mask.heads)

    @classmethod
    def of_row(cls, row: Row) -> _Shape:
        work = row.call_work
        tokens_k = row.seqlen if work.cells == work.tokens**2 else round(work.cells / work.tokens) * TILE
        masks = row.heads_kv if row.pattern in PATTERNS and PATTERNS[row.pattern].per_head else 1
        heads, dims = (row.heads_q, row.heads_kv), (row.head_dim, row.head_dim_v or row.head_dim)
        return cls(row.seqlen, tokens_k, *heads, dims, DTYPE_BYTES[row.dtype], masks)

    @property
    def q(self) -> int:
        return self.tokens_q * self.heads_q * self.head_dims[0] * self.element

    @property
    def k(self) -> int:
        return self.tokens_k * self.heads_kv * self.head_dims[0] * self.element

    @property
    def lse(self) -> int:
        return self.tokens_q * self.heads_q * max(4, self.element)

    def results(self, direction: str) -> int:
        """Bytes of the results of a direction."""
        if direction == "forward":
            return self.q * self.head_dims[1] // self.head_dims[0] + self.lse
        return self.q + self.k * sum(self.head_dims) // self.head_dims[0]


class KernelMemory:
    """The workspace and the plan of kernels' calls on GPUs, learnt from measured peaks."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._measured: dict[tuple[str, str], list[tuple[Row, Work]]] = {}
        for row in rows:
            if row.strategy is None and row.peak is not None and row.run.capability is not None:
                self._measured.setdefault((row.kernel, row.direction), []).append((row, row.call_work))
        self._weights = lru_cache(maxsize=1024)(self._fit)

    def predicted(self, part: str, kernel: str, problem: Problem, work: Work) -> int | None:
        """Bytes of the `workspace` that a call allocates beyond its inputs and results, or of its `plan`.

        None without measurements, and for a CPU.
        """
        if problem.device.kind != "cuda":
            return None
        weights = self._weights(part, kernel, str(problem.direction), problem.dims, work.path, work.family)
        return None if weights is None else round(float(np.dot(_FEATURES[part](_Shape.of(problem), work), weights)))

    def peak_of(self, row: Row) -> float | None:
        """The predicted peak of a call above its inputs, to compare with a measured one. None without measurements."""
        shape, work = _Shape.of_row(row), row.call_work
        weights = self._weights("workspace", row.kernel, row.direction, shape.head_dims, work.path, work.family)
        if weights is None:
            return None
        return shape.results(row.direction) + float(np.dot(_workspace_features(shape, work), weights))

    def _fit(
        self, part: str, kernel: str, direction: str, dims: tuple[int, int], path: str, family: str
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]] | None:
        """The bytes for each unit of a feature, from calls of the same path and head dim or the most similar ones."""
        known = [
            one for one in self._measured.get((kernel, direction), ()) if part != "plan" or one[0].plan is not None
        ]
        kind = family.partition("/")[0]
        groups = (
            [one for one in known if one[1].path == path and _Shape.of_row(one[0]).head_dims == dims],
            [one for one in known if one[1].path == path],
            [one for one in known if one[1].family == family],
            [one for one in known if one[1].family.partition("/")[0] == kind],
        )
        calls = next((group for group in groups if len(group) >= _ENOUGH), known)
        if not calls:
            return None
        shapes = [_Shape.of_row(row) for row, _ in calls]
        table = np.array([_FEATURES[part](shape, work) for shape, (_, work) in zip(shapes, calls, strict=True)])
        whole = np.array([row.peak for row, _ in calls], np.float64)
        wanted = np.array([row.plan for row, _ in calls], np.float64)
        if part == "workspace":
            wanted = whole - [shape.results(row.direction) for shape, (row, _) in zip(shapes, calls, strict=True)]
        return robust(table / whole[:, None], wanted / whole, _NOISE)


def _workspace_features(shape: _Shape, work: Work) -> Sequence[float]:
    group, layers = shape.heads_q // shape.heads_kv, work.calls - 1
    is_sparse, row = work.path.startswith("block_sparse"), shape.heads_q * shape.head_dims[0] * shape.element
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


def rank_bytes(
    registry: Registry,
    learnt: KernelMemory,
    problem: Problem,
    kernels: Sequence[str],
    layout: Layout | None = None,
    transport: Transport = Transport.AUTO,
    anywhere: bool = False,
) -> RankMemory:
    """The bytes that one attention call takes on a rank.

    Args:
        registry: Knows the kernels and the strategy.
        learnt: Knows the memory of measured kernels.
        problem: The problem of all ranks together, in any direction.
        kernels: The kernel of the forward, and in training that of the backward. Training takes the larger of the bytes
            at both moments.
        layout: The layout of a strategy, or None for one device.
        transport: The way in which the strategy moves tensors.
        anywhere: Whether a kernel stays valid when its packages are missing here.

    Raises:
        UnknownNameError: Nobody provides a kernel or the strategy.
        UnsupportedError: A kernel does not take a step.
        PluginError: A function that a manifest names cannot be imported, or returns something else.
    """
    training, is_pair = len(kernels) > 1, len(set(kernels)) > 1
    each = halves(problem) if is_pair else map(problem.in_direction, (Direction.FORWARD, Direction.BACKWARD))
    unknown: dict[str, None] = {}
    calls = [
        _call_bytes(registry, learnt, kernel, asked, layout, anywhere, unknown)
        for kernel, asked in zip(kernels, each, strict=False)
    ]
    # A single kernel has one plan for both directions.
    plan = sum(plan for plan, _ in (calls if is_pair else calls[-1:]))
    tokens = problem.concrete_mask.seqlen_q, problem.concrete_mask.seqlen_k
    around = None
    if layout is not None:
        tokens = (max(map(layout.shard_size, range(layout.world_size))),) * 2
        around = _strategy_bytes(registry, problem, layout, transport)
        if around is None:
            unknown[f"memory of {layout.strategy}"] = None
    out = tokens[0] * problem.heads_q * problem.dims[1] * DTYPE_BYTES[problem.dtype]
    gradients = gradient_bytes(problem, *tokens)
    held = {"tensors": tensor_bytes(problem, *tokens, training=training), "plan": plan}
    held["kept"] = around.kept if around and training else 0
    moments = [{**held, "workspace": calls[0][1], "strategy": max(0, around.forward - out) if around else 0}]
    if training:
        beside = max(0, around.backward - gradients) if around else 0
        moments.append({**held, "workspace": calls[1][1], "strategy": beside, "gradients": gradients})
    most = max(moments, key=lambda parts: sum(parts.values()))
    return RankMemory({name: size for name, size in most.items() if size}, tuple(unknown))


def tensor_bytes(problem: Problem, tokens_q: int, tokens_k: int, *, training: bool = False) -> int:
    """Bytes of q, k, v, out and lse, and in training also of dout, for the queries and keys of a rank."""
    row, row_v = (dim * DTYPE_BYTES[problem.dtype] for dim in problem.dims)
    queries = row + (2 if training else 1) * row_v + max(4, DTYPE_BYTES[problem.dtype])
    return tokens_q * problem.heads_q * queries + tokens_k * problem.num_heads_kv * (row + row_v)


def gradient_bytes(problem: Problem, tokens_q: int, tokens_k: int) -> int:
    """Bytes of dq, dk and dv, for the queries and keys of a rank."""
    row, row_v = (dim * DTYPE_BYTES[problem.dtype] for dim in problem.dims)
    return row * tokens_q * problem.heads_q + (row + row_v) * tokens_k * problem.num_heads_kv


def held_bytes(problem: Problem, tokens_q: int, tokens_k: int, *, training: bool) -> int:
    """Bytes of all tensors, and in training also of the gradients, for the queries and keys of a rank."""
    gradients = gradient_bytes(problem, tokens_q, tokens_k) if training else 0
    return tensor_bytes(problem, tokens_q, tokens_k, training=training) + gradients


def _strategy_bytes(
    registry: Registry, problem: Problem, layout: Layout, transport: Transport
) -> StrategyMemory | None:
    """The strategy's memory, or None if the strategy does not state it."""
    if layout.world_size == 1:
        return StrategyMemory(0, 0)
    assert layout.strategy is not None, "the registry made it"
    nccl = problem.device.kind == "cuda"
    found: StrategyMemory | None = registry.stated(
        layout.strategy, "memory", problem, dict(layout.axis_sizes), nccl, transport
    )
    return found


def _call_bytes(
    registry: Registry,
    learnt: KernelMemory,
    kernel: str,
    problem: Problem,
    layout: Layout | None,
    anywhere: bool,
    unknown: dict[str, None],
) -> tuple[int, int]:
    """The bytes of all plans and of the largest workspace of a kernel in a rank's steps, or in its only call.

    Strategies want gradients in their buffers. A kernel that does not fill them has its own gradients beside them.
    """
    manifest, plan, workspace = registry.manifest(kernel), 0, 0
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
        plan += times * parts["plan"]
        workspace = max(workspace, parts["workspace"])
    return plan, workspace


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
