"""The plan: a mask as the kernels take it, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import torch_device
from longca.kernels.sizes import block_sparse
from longca.manifests import Direction
from longca.masks import BlockSparseMask, Form
from longca_triton.config import Configs
from longca_triton.kernel import FlashPlan
from longca_vsa.bsa.configs import are_whole, choose, from_scores, packed_heads, piece_of
from longca_vsa.bsa.lists import Kept, Lists, make_lists
from longca_vsa.bsa.parts import Cut, cut_into_parts
from longca_vsa.bsa.tables import Tiles, make_tiles

__all__ = ["BSAPlan", "Range", "make_plan"]


@dataclass(frozen=True, eq=False)
class ScoreTables:
    """Places of stored gradients.

    Attributes:
        rows: The rows of a launch, at most.
        first_rows: The first row of each tile of keys: int32 [KV heads, tiles].
        head_rows: The first row of each KV head: int32 [KV heads].
        entries: For each query block and tile of keys that it sees, the tile's first key, and the row of the block's
            first query, counted from the KV head's first row: int32 [entries + 1, 2]. The last entry belongs to no
            block.
        offsets: The begin of each query block's entries: int64 [mask heads · blocks + 1].
        steps: The entries of each query block: int32 [mask heads, blocks].
        is_whole: Whether key blocks are of whole tiles.
    """

    rows: int
    first_rows: Tensor
    head_rows: Tensor
    entries: Tensor
    offsets: Tensor
    steps: Tensor
    is_whole: bool


def make_score_tables(
    kept: Tensor,
    mask: BlockSparseMask,
    steps: Tensor,
    tiles: Tiles,
    shape: tuple[int, int],
    heads: int,
    together: int,
) -> ScoreTables:
    """Places of the gradients of all programs of dk and dv.

    Args:
        kept: The blocks that each block of queries sees: bool [mask heads, query blocks, key blocks].
        mask: The mask.
        steps: The steps of each key block's list: int32 [mask heads, key blocks].
        tiles: The tiles of keys.
        shape: Queries a step and keys a tile of the launch of dk and dv.
        heads: KV heads. A multiple of the mask heads.
        together: KV heads that are launched together, a divisor of all.
    """
    owner, first_key = tiles.table[:, 3].long(), tiles.table[:, 0] + tiles.table[:, 2]
    block_m, block_n = shape
    rows = steps[:, owner].long() * block_m
    within = _before(rows)
    totals = rows.sum(1).repeat_interleave(heads // len(kept)).view(-1, together)
    head_rows = _before(totals).view(-1)
    bounds = torch.from_numpy(mask.q_bounds.copy()).to(kept.device)
    places = _places(kept, bounds, _before(steps.flatten().long()), block_m)
    head, block, tile = kept[..., owner].nonzero().unbind(1)
    entries = torch.stack([first_key[tile].long(), within[head, tile] + places[head, block, owner[tile]]], dim=1)
    counts = kept[..., owner].sum(2, dtype=torch.int32)
    return ScoreTables(
        int(totals.sum(1).max()),
        (head_rows[:, None] + within.repeat_interleave(heads // len(kept), dim=0)).int(),
        head_rows.int(),
        torch.nn.functional.pad(entries, (0, 0, 0, 1)).int(),
        torch.nn.functional.pad(counts.flatten().cumsum(0), (1, 0)),
        counts,
        are_whole(mask.k_bounds, block_n),
    )


def _places(kept: Tensor, bounds: Tensor, steps_before: Tensor, block_m: int) -> Tensor:
    """The row of each query block's first query, counted from the first row of a tile of each key block that it sees:
    int64 [mask heads, query blocks, key blocks].

    Args:
        kept: The mask's blocks: bool [mask heads, query blocks, key blocks].
        bounds: Bounds of the query blocks.
        steps_before: The steps of all lists before each key block's: int64 [mask heads · key blocks].
        block_m: Queries a step.
    """
    blocks, columns = kept.shape[1:]
    begins = kept & ~torch.nn.functional.pad(kept, (0, 0, 1, 0))[:, :blocks]
    head, column, block = kept.mT.nonzero().unbind(1)  # in the order of the lists
    is_begin = begins[head, block, column]
    run = is_begin.cumsum(0) - 1
    start = bounds[block[is_begin]]
    tokens = torch.zeros_like(start).index_add_(0, run, bounds.diff()[block])
    steps = _before(-(-tokens // block_m))
    places = torch.zeros(kept.shape, dtype=torch.int64, device=kept.device)
    within = (steps[run] - steps_before[head * columns + column]) * block_m
    places[head, block, column] = within + bounds[block] - start[run]
    return places


def _before(counts: Tensor) -> Tensor:
    """The sum of all counts before each, along the last dimension."""
    return counts.cumsum(-1) - counts


class Range(NamedTuple):
    """A range of queries in a backward that stores gradients of scores.

    Attributes:
        queries: Its queries.
        plan: The plan of their backward, with `scores` and without a forward.
    """

    queries: slice
    plan: BSAPlan


@dataclass(eq=False)
class BSAPlan(FlashPlan):
    """A plan for bsa.

    Attributes:
        packed: Query heads that are rows of one tile.
        heads_a_mask: Query heads that share a mask.
        by_query: The lists of the blocks of queries, by their piece.
        by_key: The lists of the blocks of keys, by their piece. A plan of the forward alone has none.
        tiles: Tiles and programs by kernel: `forward`, and in a plan of both directions `dkdv` and `dq`.
        ranges: The ranges of a backward that stores gradients of scores. The plan itself has then the forward alone.
        cut: The sizes of the parts of such a backward.
        scores: The places of a range's gradients of scores.
    """

    packed: int
    heads_a_mask: int
    by_query: dict[int, Lists]
    by_key: dict[int, Lists] = field(default_factory=dict)
    tiles: dict[str, Tiles] = field(default_factory=dict)
    ranges: tuple[Range, ...] = ()
    cut: Cut | None = None
    scores: ScoreTables | None = None

    @property
    def score_rows(self) -> int:
        """Rows of stored gradients of scores, at least one tile of them."""
        return max(self.configs.dkdv.block_m, self.scores.rows if self.scores else 0)

    @property
    def passes(self) -> int:
        """Lists that a program of dk and dv walks: one that its heads share, or one for each head."""
        return max(1, self.group // self.heads_a_mask)

    def lists(self, kernel: str) -> Lists:
        """The lists that `forward`, `dkdv` or `dq` walks."""
        mask = self.problem.concrete_mask
        assert isinstance(mask, BlockSparseMask)
        if self.scores:
            return self.by_key[0]
        if kernel == "dkdv":
            return self.by_key[piece_of(mask.q_bounds, self.configs.dkdv.block_m)]
        config = self.configs.forward if kernel == "forward" else self.configs.dq
        return self.by_query[piece_of(mask.k_bounds, config.block_n)]


def make_plan(problem: Problem, configs: Configs | None = None) -> BSAPlan:
    """Puts a problem's mask on its device. The backward's tables come only with a problem of both directions.

    Args:
        problem: The problem. Its mask is a block-sparse one.
        configs: Configurations of the kernels. None stands for the choice of `configs.py` for the mask's blocks.
    """
    mask, packed = problem.concrete_mask, packed_heads(problem)
    assert isinstance(mask, BlockSparseMask), f"{mask.label} is no block-sparse mask, and no other is offered"
    configs = configs or choose(problem)
    if problem.direction == "backward" and from_scores(problem, configs):
        plan, cut = make_plan(problem.in_direction(Direction.FORWARD), configs), cut_into_parts(problem, configs)
        return replace(plan, problem=problem, cut=cut, ranges=tuple(_ranges(problem, configs, cut)))
    with_backward = problem.direction == "backward"
    kept = Kept.of(mask, torch_device(problem.device))
    steps = {configs.forward.block_n, *([configs.dq.block_n] if with_backward else [])}
    plan = BSAPlan(
        problem,
        Form.BLOCK_SPARSE,
        "triton",
        configs,
        packed,
        problem.heads_q // mask.heads,
        make_lists(kept, mask.k_bounds, steps),
        make_lists(replace(kept, by_key=True), mask.q_bounds, {configs.dkdv.block_m}) if with_backward else {},
    )
    for kernel in ("forward", "dq") if with_backward else ("forward",):
        config = configs.forward if kernel == "forward" else configs.dq
        work = plan.lists(kernel).steps[config.block_n]
        plan.tiles[kernel] = make_tiles(mask.q_bounds, packed, config.block_m, work, problem.heads_q // packed)
    if with_backward:
        work = _of_kv_heads(plan.lists("dkdv").steps[configs.dkdv.block_m], plan.passes)
        plan.tiles["dkdv"] = make_tiles(mask.k_bounds, 1, configs.dkdv.block_n, work, problem.num_heads_kv)
    return plan


def _ranges(problem: Problem, configs: Configs, cut: Cut) -> Iterator[Range]:
    mask = block_sparse(problem)
    for blocks in cut.ranges:
        bounds = mask.q_bounds[blocks.start : blocks.stop + 1]
        part = BlockSparseMask.from_bits(mask.bits[:, blocks], bounds - bounds[0], mask.k_bounds)
        queries = slice(int(bounds[0]), int(bounds[-1]))
        yield Range(queries, _make_range(replace(problem, mask=part), configs, cut))


def _make_range(problem: Problem, configs: Configs, cut: Cut) -> BSAPlan:
    """The plan of a range's backward."""
    mask, heads, (m, n) = block_sparse(problem), problem.num_heads_kv, configs.dkdv.shape
    assert configs.dq.block_n == n, "dq reads the tiles that dk and dv stored"
    kept = Kept.of(mask, torch_device(problem.device))
    lists = make_lists(replace(kept, by_key=True), mask.q_bounds, {m}, gathers=False)
    plan = BSAPlan(problem, Form.BLOCK_SPARSE, "triton", configs, cut.heads, problem.heads_q // mask.heads, {}, lists)
    steps = lists[0].steps[m]
    keys = make_tiles(mask.k_bounds, 1, n, steps, heads, cut.heads_kv)
    blocks = kept.heads(slice(None)).view(mask.heads, kept.num_rows, kept.num_keys)
    plan.scores = make_score_tables(blocks, mask, steps, keys, configs.dkdv.shape, heads, cut.heads_kv)
    queries = make_tiles(mask.q_bounds, cut.heads, configs.dq.block_m, plan.scores.steps, heads, cut.heads_kv)
    plan.tiles = {"dkdv": keys, "dq": queries}
    return plan


def _of_kv_heads(steps: Tensor, passes: int) -> Tensor:
    """The steps that a program of a KV head takes over all lists that it walks: [mask heads / passes, rows]."""
    return steps.unflatten(0, (-1, passes)).sum(1, dtype=torch.int32)
