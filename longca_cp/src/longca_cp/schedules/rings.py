"""The phases of rings and of rings within rings, for `ring_p2p`, `usp` and `loongtrain`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout, Problem
from longca.manifests.schedule import Move, Phase, Schedule
from longca.masks import SliceMask
from longca_cp.schedules.sizes import Sizes, group_tokens
from longca_cp.schedules.whole_pairs import whole_pairs, whole_steps

__all__ = ["Ring", "double_ring_backward", "ring_backward", "rings"]

_Beside = bool | tuple[bool, ...]


@dataclass(frozen=True)
class Ring:
    """The tensors that go round a ring, in the group that has most."""

    axis: str
    ranks: int
    steps: int  # of a call, over all of its rings
    kv: int  # bytes of the keys and values that go round together
    wide: int  # bytes of a sum's element over those of an element
    merged: int  # bytes touched for merging each step's partial result except the first
    beside: tuple[_Beside, ...]  # for each step, whether keys travel beside it
    pushes: bool

    @classmethod
    def of(
        cls, problem: Problem, layout: Layout, nccl: bool, sizes: Sizes, axis: str, group: int, pushes: bool = False
    ) -> Ring:
        """The ring of groups of so many ranks, along one of a layout's axes."""
        ranks, steps = dict(layout.axis_sizes)[axis], layout.world_size // group
        longest = int(group_tokens(layout, group).max())
        merging = sizes.merging(steps, longest * (sizes.out if problem.direction == "forward" else sizes.q))
        kv = longest * sizes.kv
        beside = _beside(problem, layout, nccl and not pushes, steps)
        return cls(axis, ranks, steps, kv, sizes.wide, merging // max(1, steps - 1), beside, pushes)

    def hop(self, items: int, axis: str | None = None, spread: int = 1, carries: str = "dk, dv") -> tuple[Move, ...]:
        """One hop of so many times the bytes of the keys and values."""
        size = items * self.kv
        return (Move("p2p", axis or self.axis, size, size, spread, carries),) if items else ()

    def merges(self, step: int) -> int:
        """Bytes touched for the partial result of a step."""
        return self.merged if step else 0


def ring_backward(made: Ring) -> Schedule:
    """Backward: the keys go as in the forward, the sums of their gradients a step behind, and at last home."""
    if made.pushes:
        return _pushed_ring_backward(made)
    if made.steps == 1:
        return (Phase(0),)
    return (*_gradient_steps(made, 0, _copied(made), ()), _home(made, made.axis, made.ranks))


def _pushed_ring_backward(made: Ring) -> Schedule:
    """Backward with pushes: keys as in the forward, and a step's part of gradients beside the next step.

    The owner adds the part of the step before in float32. It adds the last part to its result, which is rounded then.
    """
    phases, last = [], made.ranks - 1
    for turn in range(made.ranks):
        moves = made.hop((turn < last) + (turn > 1), carries=_travellers(turn, made.ranks, began=1))
        added = made.kv * (1 + 2 * made.wide) if turn > 1 else 0
        phases.append(Phase(turn, 1.0, moves, merged=made.merges(turn) + added))
    home = Phase(moves=made.hop(last > 0), touched=made.kv * (2 + (made.wide if last > 1 else 1)) if last else 0)
    return (*phases, home)


def rings(made: Ring, outer: int = 1) -> Schedule:
    """Forward: every hop but the last is beside a step. Keys go to the next window while this one's go round."""
    phases: list[Phase] = []
    for window in range(outer):
        hop = made.hop(window + 1 < outer, "outer", made.ranks, "k, v")
        phases += _steps(made, window * made.ranks, _copied(made, window, outer), hop)
    return tuple(phases)


def double_ring_backward(made: Ring, outer: int) -> Schedule:
    """Backward of a ring within a ring: a window's sum goes home in the inner ring and is added in the outer one."""
    if made.steps == 1:
        return (Phase(0),)
    phases: list[Phase] = []
    for window in range(outer):
        hop = made.hop(_travels(made, window, outer), "outer", made.ranks, _travellers(window, outer))
        phases += _gradient_steps(made, window * made.ranks, _copied(made, window, outer), hop)
        phases.append(Phase(moves=made.hop(made.wide if made.ranks > 1 else 0)))
        phases.append(Phase(touched=((3 if window else 2) if outer > 1 else 0) * made.wide * made.kv))
    return (*phases, _home(made, "outer", outer))


def _steps(made: Ring, first: int, touched: int, hop: tuple[Move, ...]) -> list[Phase]:
    """The steps of one time round. The first step carries the touched bytes and the other moves."""
    phases = []
    for turn in range(made.ranks):
        step = first + turn
        moves = made.hop(turn + 1 < made.ranks, carries="k, v")
        phases.append(Phase(step, 1.0, moves, made.beside[step], merged=made.merges(step)))
    phases[0] = replace(phases[0], moves=(*hop, *phases[0].moves), touched=touched)
    return phases


def _gradient_steps(made: Ring, first: int, touched: int, hop: tuple[Move, ...]) -> list[Phase]:
    phases = []
    for turn in range(made.ranks):
        added = made.kv * (1 + made.wide * (2 if turn else 1))
        moves = made.hop(_travels(made, turn, made.ranks), carries=_travellers(turn, made.ranks))
        phases.append(Phase(first + turn, 1.0, moves, merged=made.merges(first + turn) + added))
    phases[0] = replace(phases[0], moves=(*hop, *phases[0].moves), touched=touched)
    return phases


def _copied(made: Ring, window: int = 0, outer: int = 1) -> int:
    """Bytes touched to put keys and values into the buffers of rings that begin. One rank and pushes have no buffer."""
    return 0 if made.pushes else 2 * made.kv * ((made.ranks > 1) + (window == 0 and outer > 1))


def _travels(made: Ring, turn: int, turns: int) -> int:
    """How many times the bytes of keys travel in a turn: keys but in the last, sums of gradients but in the first."""
    return (turn + 1 < turns) + (made.wide if turn else 0)


def _travellers(turn: int, turns: int, began: int = 0) -> str:
    """The tensors that travel in a turn of a backward. Gradients travel after the turn in which they began."""
    return ", ".join([*(["k, v"] if turn + 1 < turns else []), *(["dk, dv"] if turn > began else [])])


def _home(made: Ring, axis: str, ranks: int) -> Phase:
    """Sums are rounded, and take the last hop."""
    return Phase(moves=made.hop(ranks > 1, axis), touched=(made.wide + 1) * made.kv)


def _beside(problem: Problem, layout: Layout, nccl: bool, steps: int) -> tuple[_Beside, ...]:
    """For each step, whether the moves run beside it, as `longca_cp.overlap.is_beside` says for its cut."""
    if problem.direction == "backward" or not nccl or steps == 1:
        return (True,) * steps
    mask, (queries, keys, _) = problem.concrete_mask, layout.table.table.T
    if isinstance(mask, SliceMask):
        whole = whole_pairs(mask, layout.table)[queries, keys]
    else:
        whole = whole_steps(problem, layout)
    return tuple(map(_same, ~whole.reshape(-1, steps).T))


def _same(of_ranks: NDArray[np.bool_]) -> _Beside:
    """One answer where all ranks have the same."""
    return bool(of_ranks[0]) if of_ranks.all() or not of_ranks.any() else tuple(of_ranks.tolist())
