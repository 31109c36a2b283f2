"""The launches of flashmask: one kernel each, over a plan's blocks and the heads.

Shapes: q, out and dout [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq]. Inputs and results have a contiguous last
dimension, and any strides over tokens and heads.
"""

from __future__ import annotations

from torch import Tensor

from longca_flashmask.backward import gather_dkdv, gather_dq
from longca_flashmask.forward import attend
from longca_flashmask.plan import FlashMaskPlan
from longca_flashmask.tables import Intervals, Tiles
from longca_triton.descriptors import sources, strides, vector_sources
from longca_triton.prepare import launch_prepare

__all__ = ["launch_attend", "launch_dkdv", "launch_dq", "launch_prepare"]


def launch_attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: FlashMaskPlan) -> None:
    """Writes out and lse."""
    config, intervals = plan.configs.forward, plan.query_intervals
    tiles, (m, n) = plan.by_query[config.shape], config.shape
    inputs, tma = sources((q, k, v), (m, n, n), config.tma)
    attend[tiles.grid(q.shape[1])](
        *inputs,
        out,
        lse,
        *_tables(intervals, tiles),
        *strides(q, k, v, out),
        *lse.stride(),
        plan.group,
        plan.problem.scale,
        q.shape[0],
        k.shape[0],
        INTERVALS=intervals.count,
        PLAIN=tiles.are_plain,
        HEADS_FIRST=int(tiles.heads_first),
        **config.constants(q.shape[2], tma),
    )


def launch_dkdv(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dk: Tensor, dv: Tensor, plan: FlashMaskPlan
) -> None:
    """Writes dk and dv."""
    config, intervals = plan.configs.dkdv, plan.key_intervals
    assert intervals is not None, "the plan was made for the forward alone"
    tiles, (m, n) = plan.by_key[config.shape], config.shape
    inputs, tma = sources((q, k, v, dout), (m, n, n, m), config.tma)
    gather_dkdv[tiles.grid(k.shape[1])](
        *inputs,
        *vector_sources(prepared, m, tma),
        dk,
        dv,
        *_tables(intervals, tiles),
        *strides(q, k, v, dout, dk, dv),
        plan.group,
        plan.problem.scale,
        q.shape[0],
        k.shape[0],
        prepared.shape[2],
        INTERVALS=intervals.count,
        HEADS_FIRST=int(tiles.heads_first),
        **config.constants(q.shape[2], tma),
    )


def launch_dq(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dq: Tensor, plan: FlashMaskPlan) -> None:
    """Writes dq."""
    config, intervals = plan.configs.dq, plan.query_intervals
    tiles, (m, n) = plan.by_query[config.shape], config.shape
    inputs, tma = sources((q, k, v, dout), (m, n, n, m), config.tma)
    gather_dq[tiles.grid(q.shape[1])](
        *inputs,
        *prepared,
        dq,
        *_tables(intervals, tiles),
        *strides(q, k, v, dout, dq),
        plan.group,
        plan.problem.scale,
        q.shape[0],
        k.shape[0],
        prepared.shape[2],
        INTERVALS=intervals.count,
        PLAIN=tiles.are_plain,
        HEADS_FIRST=int(tiles.heads_first),
        **config.constants(q.shape[2], tma),
    )


def _tables(intervals: Intervals, tiles: Tiles) -> tuple[Tensor, ...]:
    return intervals.starts, intervals.stops, tiles.rows, tiles.runs
