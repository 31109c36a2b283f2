"""RankMemory: the bytes that one attention call takes on a rank, in parts, without torch and without a device.

A call needs memory for its tensors, its plans, the kernel's workspace and the strategy's buffers. Kernels and
strategies state their parts in functions that their manifests name. A part without such a function counts as 0 and is
listed in `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from longca.manifests import Direction, KernelManifest, Layout, Problem, Transport
from longca.manifests.memory import StrategyMemory
from longca.manifests.offers import DTYPE_BYTES
from longca.manifests.pairs import halves, split
from longca.manifests.step_cuts import rank_areas, rank_problems, step_problems
from longca.masks import Form
from longca.plugins import Registry

__all__ = ["RankMemory", "gradient_bytes", "held_bytes", "rank_bytes", "tensor_bytes"]


#: The limit of steps for finding the rank with the largest area. In larger layouts the last rank counts as that rank.
_LOOKED_AT = 2**14

#: Classes of areas in each octave. In large layouts, steps whose areas have the same class count as alike.
_ALIKE = 8


@dataclass(frozen=True)
class RankMemory:
    """The bytes that one attention call takes on the rank that needs most, at its peak.

    Attributes:
        parts: Bytes by name, at the moment of the peak: `tensors` (q, k, v, out and lse, in training also dout),
            `gradients` (dq, dk, dv), `plan`, `workspace` of the kernel, `strategy`, and `kept` between a strategy's
            forward and its backward.
        unknown: The parts that no manifest states. They count as 0.
    """

    parts: Mapping[str, int]
    unknown: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all parts together."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class _Calls:
    """The memory of one kernel in a rank's steps: bytes of all plans, and the largest workspace."""

    plan: int = 0
    workspace: int = 0
    unknown: tuple[str, ...] = ()


def rank_bytes(
    registry: Registry,
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
    before, after = (
        halves(problem)
        if paired
        else (problem.in_direction(Direction.FORWARD), problem.in_direction(Direction.BACKWARD))
    )
    tokens = _tokens(problem, layout)
    # A single kernel has one plan for both directions.
    first = _calls(registry, forward, before, layout, anywhere, planned=paired or not training)
    second = _calls(registry, backward or forward, after, layout, anywhere) if training else _Calls()
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
    """Bytes of dq, dk and dv.

    Args:
        problem: Says heads, head dimension and data type. Its mask is not looked at.
        tokens_q: Queries on the rank.
        tokens_k: Keys on the rank.
    """
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
    registry: Registry, kernel: str, problem: Problem, layout: Layout | None, anywhere: bool, *, planned: bool = True
) -> _Calls:
    """The memory of a kernel in a rank's steps or its only call."""
    plan, workspace = 0, 0
    for step, times in _steps(problem, layout):
        of_step, needed = _of_step(registry, kernel, step, anywhere, in_buffers=layout is not None)
        plan += times * of_step if planned else 0
        workspace = max(workspace, needed)
    return _Calls(plan, workspace, tuple(dict.fromkeys(_unstated(registry, kernel))))


def _of_step(registry: Registry, kernel: str, step: Problem, anywhere: bool, *, in_buffers: bool) -> tuple[int, int]:
    """The bytes of the plans of a kernel or of a pair for a step, and of the larger workspace.

    Strategies want gradients in their buffers. A kernel that does not fill them has its own gradients beside them.
    """
    pair, plan, workspace = split(kernel), 0, 0
    for name, part in zip(pair, halves(step), strict=True) if pair else [(kernel, step)]:
        manifest, verdict = registry.manifest(name), registry.resolve(name, part, anywhere=anywhere)
        verdict.check()
        assert verdict.offer is not None, "a kernel that takes a step has an offer for it"
        plan += _stated(registry, manifest, "plan_bytes", part, verdict.offer.form)
        mask, needs = part.concrete_mask, _stated(registry, manifest, "workspace", part, verdict.offer.form)
        if in_buffers and part.direction is Direction.BACKWARD and not verdict.offer.fills_buffers:
            needs += gradient_bytes(part, mask.seqlen_q, mask.seqlen_k)
        workspace = max(workspace, needs)
    return plan, workspace


def _unstated(registry: Registry, kernel: str) -> Iterator[str]:
    """The parts of kernels' memory that no manifest states."""
    for manifest in (registry.manifest(kernel),):
        for name, function in (("workspace", manifest.workspace), ("plan", manifest.plan_bytes)):
            if function is None:
                yield f"{name} of {manifest.name}"


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
    for step in step_problems(problem, layout)[rank] if small else rank_problems(problem, layout, rank):
        if step is not None:
            mask = step.concrete_mask
            area = mask.area if small else round(_ALIKE * log2(mask.area))
            found.setdefault((step.heads_q, step.num_heads_kv, mask.seqlen_q, mask.seqlen_k, area), []).append(step)
    yield from ((max(steps, key=lambda step: step.area), len(steps)) for steps in found.values())


def _stated(registry: Registry, manifest: KernelManifest, field: str, problem: Problem, form: Form) -> int:
    """The bytes that a function of a kernel's manifest returns, or 0 without a function."""
    if getattr(manifest, field) is None:
        return 0
    return int(registry.call(manifest, field, problem, form))
