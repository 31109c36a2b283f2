"""Plans: a mask's documents on the device, and the graphs for them.

A mask of one document takes a dense graph. Several documents take a ragged graph. So do the single documents that dense
graphs refuse: more queries than keys under a band, and a single pair. The sizes of ragged graphs are rounded up, so the
masks of training steps, which differ a little, share graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, torch_device
from longca.manifests.problem import Direction
from longca.masks import Form, Window
from longca_cudnn.documents import Documents, bucket, documents_of
from longca_cudnn.specs import OPERANDS, GraphSpec, Strides, Uid

__all__ = ["CuDNNPlan", "make_plan"]

_UNBOUNDED = Window(None, None)
_TILE = 128  # tokens. Lengths of ragged graphs are rounded up to a multiple or more.


@dataclass(eq=False, kw_only=True)
class CuDNNPlan(Plan):
    """A plan for cudnn.

    Attributes:
        batch: Number of the graph's documents. 0 means that no query sees a key and nothing runs.
        seqlen_q: Queries of the longest document.
        seqlen_k: Keys of the longest document.
        first_query: First query of a dense graph. Queries before it see nothing and are left out.
        window: The window that all documents share.
        bottom_right: True if the window's diagonal ends in the last corner of a document. False if it begins in the
            first corner.
        ragged: Upper bound of the tokens of all documents of a ragged graph, as (queries, keys).
        starts_q: First query of each document of a ragged graph, and the end of the last one: int64 [batch + 1].
        starts_k: First key of each document of a ragged graph, and the end of the last one: int64 [batch + 1].
        lengths_q: Queries of each document of a ragged graph: int32 [batch].
        lengths_k: Keys of each document of a ragged graph: int32 [batch].
        blind_q: Queries that see nothing: int64. None if every query sees a key.
        blind_k: Keys that no query sees: int64. None if every key is seen.
    """

    batch: int
    seqlen_q: int = 0
    seqlen_k: int = 0
    first_query: int = 0
    window: Window = _UNBOUNDED
    bottom_right: bool = False
    ragged: tuple[int, int] | None = None
    starts_q: Tensor | None = None
    starts_k: Tensor | None = None
    lengths_q: Tensor | None = None
    lengths_k: Tensor | None = None
    blind_q: Tensor | None = None
    blind_k: Tensor | None = None
    _offsets: dict[tuple[bool, int], Tensor] = field(default_factory=dict, repr=False)

    def spec(self, direction: Direction, strides: tuple[Strides, ...]) -> GraphSpec:
        """The graph for tensors of the given strides."""
        return GraphSpec(
            direction=direction,
            dtype=self.problem.dtype,
            batch=self.batch,
            seqlen_q=self.seqlen_q,
            seqlen_k=self.seqlen_k,
            heads_q=self.problem.heads_q,
            heads_kv=self.problem.num_heads_kv,
            head_dims=self.problem.dims,
            window=self.window,
            bottom_right=self.bottom_right,
            scale=self.problem.scale,
            deterministic=self.problem.deterministic and direction == "backward",
            ragged=self.ragged,
            strides=strides,
        )

    def packed_spec(self, direction: Direction) -> GraphSpec:
        """The graph for contiguous tensors."""
        heads, dims = (self.problem.heads_q, self.problem.num_heads_kv), self.problem.dims
        shapes = ((heads[uid.is_of_keys], dims[uid.is_of_values]) for uid in OPERANDS[direction])
        return self.spec(direction, tuple((count * dim, dim) for count, dim in shapes))

    def offsets(self, uid: Uid, by_token: int) -> Tensor:
        """The offset of each document of a ragged graph in a tensor, in elements: int64 [batch + 1]."""
        key = uid.is_of_keys, by_token
        if key not in self._offsets:
            starts = self.starts_k if uid.is_of_keys else self.starts_q
            assert starts is not None, "a ragged plan has starts"
            self._offsets[key] = starts * by_token
        return self._offsets[key]


def make_plan(problem: Problem, form: Form) -> CuDNNPlan:
    """Puts a mask, in a form that it admits, on the problem's device.

    Args:
        problem: The problem. All heads share its mask.
        form: `full`, `causal`, `window` or `varlen`.
    """
    mask, device = problem.concrete_mask, torch_device(problem.device)
    found = documents_of(mask.head(0), form)
    blind_q, blind_k = (
        torch.from_numpy(blind).to(device) if len(blind) else None
        for blind in (found.uncovered_q(mask.seqlen_q), found.uncovered_k(mask.seqlen_k))
    )
    if not found.count:
        return CuDNNPlan(problem, form, "nothing to run", batch=0, blind_q=blind_q, blind_k=blind_k)
    plan = CuDNNPlan(
        problem,
        form,
        "sdpa",
        batch=1,
        seqlen_q=int(found.length_q.max()),
        seqlen_k=int(found.length_k.max()),
        first_query=int(found.start_q[0]),
        window=found.window,
        bottom_right=found.window != _UNBOUNDED and not found.are_square,
        blind_q=blind_q,
        blind_k=blind_k,
    )
    if form is Form.VARLEN or not found.are_one_dense:
        _make_ragged(plan, found, device)
    return plan


def _make_ragged(plan: CuDNNPlan, found: Documents, device: torch.device) -> None:
    mask = plan.problem.concrete_mask
    plan.backend = "sdpa, ragged"
    plan.batch, plan.first_query = bucket(found.count, 1), 0
    plan.seqlen_q, plan.seqlen_k = bucket(plan.seqlen_q, _TILE), bucket(plan.seqlen_k, _TILE)
    plan.ragged = bucket(mask.seqlen_q, _TILE), bucket(mask.seqlen_k, _TILE)
    plan.starts_q, plan.lengths_q = _upload(found.start_q, found.length_q, plan.batch, device)
    plan.starts_k, plan.lengths_k = _upload(found.start_k, found.length_k, plan.batch, device)
    heads = {Uid.Q: plan.problem.heads_q, Uid.K: plan.problem.num_heads_kv}
    for uid, count in heads.items():  # offsets in contiguous tensors, and in the log-sum-exp
        for dim in plan.problem.dims:
            plan.offsets(uid, count * dim)
    plan.offsets(Uid.LSE, plan.problem.heads_q)


def _upload(
    start: NDArray[np.int64], length: NDArray[np.int64], batch: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Starts and lengths of documents, followed by empty documents up to the size of the batch."""
    missing = batch - len(start)
    end = np.full(missing + 1, start[-1] + length[-1], np.int64)
    starts = np.concatenate([start, end])
    lengths = np.concatenate([length, np.zeros(missing, np.int64)]).astype(np.int32)
    return torch.from_numpy(starts).to(device), torch.from_numpy(lengths).to(device)
