"""The ways to bring keys and values round a ring: passed on from rank to rank, or pushed straight to their readers.

A plan has one way for each of its rings. The way makes the ring of each call. A ring of one rank pushes nothing, and so
copies nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.manifests import Layout, Problem
from longca.manifests.step_cuts import step_areas
from longca_cp.exchange import Axis
from longca_cp.inbox import Inbox, Request
from longca_cp.kv_ring import GradientRing, KVRing
from longca_cp.pushed_ring import PushedGradients, PushedKeys, Turns
from longca_cp.transports.link import Link

__all__ = ["ByCollectives", "ByPushes", "RingTransport", "Round", "ring_transport", "shown_steps"]


@dataclass(frozen=True)
class Round:
    """One time round a ring.

    Attributes:
        tokens: Number of tokens that each member begins with: [members].
        shown: Whether each member computes something in each turn: [members, turns].
    """

    tokens: Sequence[int]
    shown: NDArray[np.bool_]


def shown_steps(problem: Problem, layout: Layout) -> NDArray[np.bool_]:
    """Whether each step of each rank shows some pair: [ranks, steps]."""
    return step_areas(problem, layout).reshape(layout.world_size, -1) > 0


class ByCollectives:
    """Keys and values, and the sums of their gradients, passed on from rank to rank by collectives.

    Args:
        axis: The ring.
        rounds: The times round that a call makes.
        longest: Tokens that a buffer has room for.
    """

    def __init__(self, axis: Axis, rounds: Sequence[Round], longest: int) -> None:
        self._axis, self._rounds, self._longest = axis, rounds, longest

    def keys(self, k: Tensor, v: Tensor, turn: int = 0) -> KVRing:
        """A time round of this rank's keys and values: [T, H, D]."""
        return KVRing(self._axis, self._rounds[turn].tokens, k, v, self._longest)

    def gradients(self, k: Tensor, v: Tensor, turn: int = 0) -> GradientRing:
        """A time round with gradients."""
        return GradientRing(self._axis, self._rounds[turn].tokens, k, v, self._longest)


class ByPushes:
    """Keys and values, and parts of their gradients, pushed into inboxes. The first call makes these.

    Args:
        axis: The ring.
        link: Its link. None for a ring of one rank.
        rounds: The times round that a call makes.
        length: Elements of the keys and values of the longest member.
        dtype: The dtype of keys and values.
        part: The dtype of parts of gradients.
    """

    def __init__(
        self, axis: Axis, link: Link | None, rounds: Sequence[Round], length: int, dtype: torch.dtype, part: torch.dtype
    ) -> None:
        self._axis, self._rounds, self._length = axis, rounds, length
        self._there = [Turns.of_keys(axis, each.shown) for each in rounds]
        self._back = [Turns.of_gradients(axis, each.shown) for each in rounds]
        self._keys = self._parts = None
        if link is not None:
            self._keys = Request(link, "keys and values", length, dtype, _most(self._there))
            self._parts = Request(link, "gradients", length, part, _most(self._back))

    def keys(self, k: Tensor, v: Tensor, turn: int = 0) -> PushedKeys:
        """A time round of this rank's keys and values: [T, H, D]."""
        return PushedKeys(self._axis, _inbox(self._keys), self._there[turn], self._rounds[turn].tokens, k, v)

    def gradients(self, k: Tensor, v: Tensor, turn: int = 0) -> PushedGradients:
        """A time round with gradients."""
        boxes, turns = (_inbox(self._keys), _inbox(self._parts)), (self._there[turn], self._back[turn])
        return PushedGradients(self._axis, boxes, turns, self._rounds[turn].tokens, k, v, self._length)


RingTransport = ByCollectives | ByPushes


def ring_transport(
    axis: Axis, problem: Problem, heads_kv: int, rounds: Sequence[Round], *, longest: int, wide: bool = False
) -> RingTransport:
    """The way of one ring of a plan.

    Args:
        axis: The ring.
        problem: The problem of all ranks together.
        heads_kv: KV heads of this rank.
        rounds: The times round that a call makes.
        longest: Tokens that a buffer has room for.
        wide: Whether the parts of gradients are sums already, which travel in float32 (float64 for float64).
    """
    if axis.link is None and axis.size > 1:
        return ByCollectives(axis, rounds, longest)
    dtype = getattr(torch, problem.dtype)
    part = torch.promote_types(dtype, torch.float32) if wide else dtype
    return ByPushes(axis, axis.link, rounds, 2 * longest * heads_kv * problem.head_dim, dtype, part)


def _inbox(request: Request | None) -> Inbox | None:
    return None if request is None else request.inbox


def _most(rounds: Sequence[Turns]) -> int:
    """The most pushes that arrive at any member in any round."""
    return max(each.most for each in rounds)
