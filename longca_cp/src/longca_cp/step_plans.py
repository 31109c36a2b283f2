"""Step plans: the kernel's plan for each attention call that this rank makes, all made before the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from longca.kernels.base import Kernel, Plan, fill, new_out, nothing_seen
from longca.manifests import Layout, Problem
from longca.manifests.resolve import step_problems
from longca_cp.heads import chunk_of

__all__ = ["Gradients", "Saved", "StepPlans", "attend", "differentiate", "plan_chunks", "plan_steps"]


#: q, k, v, out and lse of a forward, which the backward needs.
Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
#: dq, dk and dv.
Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(eq=False)
class StepPlans:
    """The common part of all strategies' plans."""

    problem: Problem  # of all ranks together
    layout: Layout
    rank: int  # this rank in the layout
    kernel: Kernel
    steps: tuple[Plan | None, ...] = field(repr=False)  # for each call, in order. None for an empty step

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the mask's metadata on this rank's device, over all steps. A shared plan counts once."""
        plans = {id(plan): plan for plan in self.steps if plan is not None}
        return sum(plan.metadata_bytes for plan in plans.values())

    def sinks_of(self, sinks: Tensor | None, chunks: int) -> Sequence[Tensor | None]:
        """The sinks [Hq] of each chunk of the heads that this rank computes."""
        own = slice(*self.layout.steps[self.rank][0].heads_q)
        return [None] * chunks if sinks is None else sinks[own].chunk(chunks)


def plan_steps(problem: Problem, layout: Layout, rank: int, kernel: Kernel, chunks: int = 1) -> tuple[Plan | None, ...]:
    """A plan for each of a rank's steps, for chunks of heads that share a mask. None for an empty step."""
    asked = step_problems(problem, layout)[rank]
    return tuple(None if step is None else kernel.plan(_problem_of(step, chunks)) for step in asked)


def plan_chunks(problem: Problem, layout: Layout, rank: int, kernel: Kernel, chunks: int) -> tuple[Plan | None, ...]:
    """A plan for each chunk of heads of a rank's one step. Chunks share a plan if heads share a mask."""
    (step,) = step_problems(problem, layout)[rank]
    if step is None:
        return (None,) * chunks
    if step.concrete_mask.heads == 1:
        return (kernel.plan(_problem_of(step, chunks)),) * chunks
    parts = (_problem_of(step, chunks, chunk) for chunk in range(chunks))
    return tuple(None if part.concrete_mask.is_empty else kernel.plan(part) for part in parts)


def _problem_of(step: Problem, chunks: int, chunk: int = 0) -> Problem:
    """The problem of one of `chunks` equal chunks of a step's heads."""
    heads_q, heads_kv = (range(heads)[chunk_of(heads, chunk, chunks)] for heads in (step.heads_q, step.num_heads_kv))
    return step.narrowed(heads_q, heads_kv)


def attend(
    kernel: Kernel,
    step: Plan | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A step's output and log-sum-exp for q [Tq, Hq, D], k and v [Tk, Hkv, D]. For an empty step 0 and −∞."""
    if step is not None:
        return kernel.forward(q, k, v, step, out=out, lse=lse)
    return fill(out, new_out(q, v).zero_()), fill(lse, nothing_seen(q))


def differentiate(kernel: Kernel, step: Plan | None, dout: Tensor, saved: Saved, into: Gradients) -> Gradients:
    """A step's gradients, in buffers, by its out and lse or those of a larger softmax. For an empty step 0."""
    dq, dk, dv = into
    if step is not None:
        return kernel.backward(dout, *saved, step, dq=dq, dk=dk, dv=dv)
    return dq.zero_(), dk.zero_(), dv.zero_()
