"""The plan: a mask as the kernels take it, on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import torch_device
from longca.masks import Form
from longca_flashmask.tables import Intervals, Sheet, TileArrays, Tiles, tile_arrays, token_intervals
from longca_triton.config import Configs
from longca_triton.kernel import FlashPlan

__all__ = ["FlashMaskPlan", "make_plan"]

_PROGRAMS = 2  # that run on a multiprocessor at a time, with the configurations of `flashmask.py`


@dataclass(eq=False)
class FlashMaskPlan(FlashPlan):
    """A plan for flashmask.

    Attributes:
        query_intervals: Each query's keys.
        key_intervals: Each key's queries, or None in a plan of the forward alone.
        by_query: Tiles of each block of queries, by (queries, keys) a tile.
        by_key: Tiles of each block of keys, by (queries, keys) a tile. A plan of the forward alone has none.
    """

    query_intervals: Intervals
    key_intervals: Intervals | None = None
    by_query: dict[tuple[int, int], Tiles] = field(default_factory=dict)
    by_key: dict[tuple[int, int], Tiles] = field(default_factory=dict)


def make_plan(problem: Problem, configs: Configs) -> FlashMaskPlan:
    """Puts a problem's mask on its device. The backward's tables come only with a problem of both directions."""
    mask, with_backward = problem.concrete_mask, problem.direction == "backward"
    device, sheet = torch_device(problem.device), Sheet()
    by_query = {
        shape: tile_arrays(mask.blocks(*shape).by_query, is_ragged=mask.seqlen_k % shape[1] != 0)
        for shape in {configs.forward.shape, *([configs.dq.shape] if with_backward else [])}
    }
    # Queries past the end weigh nothing, so the last block of queries counts as full even if it lacks some.
    by_key = {
        shape: tile_arrays(mask.blocks(*shape).by_key, is_ragged=False)
        for shape in ([configs.dkdv.shape] if with_backward else [])
    }
    where = [{shape: sheet.add(tiles.rows, tiles.runs) for shape, tiles in side.items()} for side in (by_query, by_key)]
    there, programs = sheet.send(device), _PROGRAMS * _multiprocessors(device)
    heads = problem.heads_q, problem.num_heads_kv
    return FlashMaskPlan(
        problem,
        Form.COLUMN_INTERVALS,
        "triton",
        configs,
        token_intervals(mask, device, by_key=False),
        token_intervals(mask, device, by_key=True) if with_backward else None,
        *(
            {shape: _tiles(tiles, there[places[shape]], count, programs) for shape, tiles in side.items()}
            for side, places, count in zip((by_query, by_key), where, heads, strict=True)
        ),
    )


def _tiles(arrays: TileArrays, there: list[Tensor], heads: int, programs: int) -> Tiles:
    rows, runs = there
    return Tiles(rows, runs, arrays.are_plain, arrays.heads_first(heads, programs))


def _multiprocessors(device: torch.device) -> int:
    """A GPU's multiprocessors. A CPU, whose kernels are interpreted, counts as one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
