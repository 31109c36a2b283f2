"""The forward kernel of bsa_gluon: a warp that copies, and two warp groups that compute.

A program takes one tile of 128 rows after another. One warp brings queries, keys and values by the tensor memory
accelerator, and each warp group computes 64 rows. The two take turns at the tensor cores: one has its softmax while the
other has its products. A step has two pieces of 64 keys, so products have 128 columns.

Within a warp group, the products for the scores of the next step run beside those of the weights and values of this
one. This goes on from tile to tile. A list is walked from its end, so keys are hidden in the first step alone: those
past the end of the sequence, and a whole piece if the list has an odd number of pieces.

Sources: FlashAttention-2 (arXiv 2307.08691, algorithm 1) has the softmax. FlashAttention-3 (arXiv 2407.08608, sections
3.1 and 3.2) has the warps of one task, the turns, and the two products at a time.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = ["attend"]

# Triton 3.9 has other names for the copies.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

#: Rows of a warp group, keys of a piece, and elements of half a head.
_PART = gl.constexpr(64)
#: Keys of a step.
_STEP = gl.constexpr(128)
#: Steps whose keys and values are there or on their way.
_STAGES = gl.constexpr(2)
_LN2 = gl.constexpr(0.6931471805599453)
#: The layouts of scores, and of halves of weighted values.
_SCORES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16]))
_VALUES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))
_WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=_VALUES.value, k_width=2))


class _Tables(NamedTuple):
    """The plan's tables, and the mask's numbers.

    Attributes:
        order: The heads and the tile of each program: int32 [programs].
        tiles: Tiles of query rows: int32 [num_tiles, 4].
        entries: Lists of key blocks, one after another.
        offsets: The begin of each query block's list, by mask head and block: int64 [mask heads · num_lists + 1].
        programs: Programs.
        num_tiles: Tiles.
        num_lists: Query blocks.
        heads_a_mask: Query heads that share a mask.
        unit: Pieces a key block.
        seqlen_k: Keys.
    """

    order: Any
    tiles: Any
    entries: Any
    offsets: Any
    programs: Any
    num_tiles: Any
    num_lists: Any
    heads_a_mask: Any
    unit: Any
    seqlen_k: Any


class _Shared(NamedTuple):
    """Shared memory, and the barriers that say when it was written and when it was read.

    Attributes:
        q: Halves of the queries of two tiles, by tile, warp group and half: [8, 64, 64].
        k: Halves of the keys of each stage: [2 · stages, 128, 64].
        v: The same of values.
        out: Halves of results, by warp group and half: [4, 64, 64].
        q_ready: Queries are there: one barrier for each tile and warp group.
        q_free: They were read.
        k_ready: Keys are there: one for each stage.
        k_free: Both warp groups read them.
        v_ready: Values are there, likewise.
        v_free: Both warp groups read them.
        turns: A warp group may begin its products: one for each.
    """

    q: Any
    k: Any
    v: Any
    out: Any
    q_ready: Any
    q_free: Any
    k_ready: Any
    k_free: Any
    v_ready: Any
    v_free: Any
    turns: Any


@gluon.jit
def _tile_of(tables, program, PACKED: gl.constexpr):
    """A program's first token, first head, begin of its list, pieces of it, steps, and keys of its last piece."""
    work = gl.load(tables.order + program)
    head = work // tables.num_tiles * PACKED
    tile = tables.tiles + 4 * (work % tables.num_tiles)
    token = gl.load(tile) + gl.load(tile + 2) // PACKED
    place = head // tables.heads_a_mask * tables.num_lists + gl.load(tile + 3)
    first = gl.load(tables.offsets + place)
    count = (gl.load(tables.offsets + place + 1) - first).to(gl.int32)
    block = _PART * tables.unit
    last = gl.load(tables.entries + first + gl.maximum(count - 1, 0)).to(gl.int32) * block
    keys = gl.minimum(block, tables.seqlen_k - last)
    of_last = (keys + _PART - 1) // _PART
    pieces = gl.where(count > 0, (count - 1) * tables.unit + of_last, 0)
    per_step: gl.constexpr = _STEP // _PART
    steps = gl.maximum((pieces + per_step - 1) // per_step, 1)  # a tile that sees nothing has a step too
    return token, head, first, pieces, steps, keys - (of_last - 1) * _PART


@gluon.jit
def _copy_step(source, target, ready, tables, first, pieces, steps, step, head, stage):
    """Brings the keys or values of a step."""
    per_step: gl.constexpr = _STEP // _PART
    mbarrier.expect(ready.index(stage), 2 * _STEP * _PART * 2)
    for piece in gl.static_range(per_step):
        # Counted from the end of the list. The first step may have a piece too many, which is hidden.
        back = gl.maximum(step * per_step + piece - (steps * per_step - pieces), 0)
        index = gl.maximum(pieces - 1 - back, 0)
        block = gl.load(tables.entries + first + index // tables.unit).to(gl.int32)
        key = (block * tables.unit + index % tables.unit) * _PART
        for half in gl.static_range(2):
            there = target.index(2 * stage + half).reshape([_STEP, 1, _PART]).slice(piece * _PART, _PART)
            _load(source, [key, head, half * _PART], ready.index(stage), there)


@gluon.jit
def _copy(q, k, v, shared, tables, group, PACKED: gl.constexpr):
    """The warp that copies: it brings the queries, keys and values of all tiles of the program."""
    tokens: gl.constexpr = _PART // PACKED
    at, turn = 0, 0
    for program in range(gl.program_id(0), tables.programs, gl.num_programs(0)):
        token, head, first, pieces, steps, _ = _tile_of(tables, program, PACKED)
        for which in gl.static_range(2):
            slot = turn % 2 * 2 + which
            mbarrier.wait(shared.q_free.index(slot), turn // 2 % 2 ^ 1)
            mbarrier.expect(shared.q_ready.index(slot), 2 * _PART * _PART * 2)
            for half in gl.static_range(2):
                rows = shared.q.index(2 * slot + half).reshape([tokens, PACKED, _PART])
                _load(q, [token + which * tokens, head, half * _PART], shared.q_ready.index(slot), rows)
        for step in range(steps):
            stage, phase = at % _STAGES, at // _STAGES % 2 ^ 1
            mbarrier.wait(shared.k_free.index(stage), phase)
            _copy_step(k, shared.k, shared.k_ready, tables, first, pieces, steps, step, head // group, stage)
            mbarrier.wait(shared.v_free.index(stage), phase)
            _copy_step(v, shared.v, shared.v_ready, tables, first, pieces, steps, step, head // group, stage)
            at += 1
        turn += 1  # noqa: SIM113  # the compiler has no enumerate


@gluon.jit
def _begin_scores(shared, slot, at):
    """Begins the product of a tile's queries and a step's keys."""
    stage = 2 * (at % _STAGES)
    scores = gl.zeros([_PART, _STEP], gl.float32, _SCORES)
    for half in gl.static_range(2):
        keys = shared.k.index(stage + half).permute((1, 0))
        scores = warpgroup_mma(shared.q.index(2 * slot + half), keys, scores, use_acc=half == 1, is_async=True)
    return scores


@gluon.jit
def _begin_values(shared, weights, out_0, out_1, at):
    """Begins to add the product of weights and a step's values."""
    stage = 2 * (at % _STAGES)
    out_0 = warpgroup_mma(weights, shared.v.index(stage), out_0, is_async=True)
    return out_0, warpgroup_mma(weights, shared.v.index(stage + 1), out_1, is_async=True)


@gluon.jit
def _first_weights(scores, pieces, steps, keys, scale):
    """Weights of a tile's first step, where keys are hidden: the weights, and each row's peak and sum."""
    place = gl.arange(0, _STEP, gl.SliceLayout(0, _SCORES)) - (steps * _STEP - pieces * _PART)
    seen = (place >= 0) & ((place >= _PART) | (place < keys))
    scores = gl.where(seen[None, :], scores, float("-inf"))
    peak = gl.max(scores, axis=1) * scale
    peak = gl.where(peak == float("-inf"), 0.0, peak)  # a row that sees nothing has weights of 0
    weights = gl.exp2(scores * scale - peak[:, None])
    return weights, peak, gl.sum(weights, axis=1)


@gluon.jit
def _compute(
    which: gl.constexpr, out, lse, shared, tables, stride_lh, stride_lt, seqlen_q, scale, PACKED: gl.constexpr
):
    """A warp group: attention of its rows of all tiles of the program."""
    tokens: gl.constexpr = _PART // PACKED
    dtype: gl.constexpr = shared.q.dtype
    token, head, _first, pieces, steps, keys = _tile_of(tables, gl.program_id(0), PACKED)
    at, turn, rounds = 0, 0, 1
    mbarrier.wait(shared.q_ready.index(which), 0)
    mbarrier.wait(shared.k_ready.index(0), 0)
    mbarrier.wait(shared.turns.index(which), 0)
    scores = _begin_scores(shared, which, 0)
    mbarrier.arrive(shared.turns.index(1 - which))
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(shared.k_free.index(0))
    weights, peak, total = _first_weights(scores, pieces, steps, keys, scale)
    low = gl.convert_layout(weights.to(dtype), _WEIGHTS)
    for program in range(gl.program_id(0), tables.programs, gl.num_programs(0)):
        # The next tile's numbers are loaded now, so that nobody waits for them.
        there_is_more = program + gl.num_programs(0) < tables.programs
        following = gl.where(there_is_more, program + gl.num_programs(0), program)
        next_token, next_head, _first, pieces, next_steps, keys = _tile_of(tables, following, PACKED)
        out_0 = gl.zeros([_PART, _PART], gl.float32, _VALUES)
        out_1 = gl.zeros([_PART, _PART], gl.float32, _VALUES)
        for _ in range(1, steps):
            at += 1
            mbarrier.wait(shared.k_ready.index(at % _STAGES), at // _STAGES % 2)
            mbarrier.wait(shared.turns.index(which), rounds % 2)
            scores = _begin_scores(shared, turn % 2 * 2 + which, at)
            mbarrier.wait(shared.v_ready.index((at - 1) % _STAGES), (at - 1) // _STAGES % 2)
            begun_0, begun_1 = _begin_values(shared, low, out_0, out_1, at - 1)
            mbarrier.arrive(shared.turns.index(1 - which))
            rounds += 1
            scores = warpgroup_mma_wait(2, deps=[scores])
            mbarrier.arrive(shared.k_free.index(at % _STAGES))
            higher = gl.maximum(peak, gl.max(scores, axis=1) * scale)
            weights = gl.exp2(scores * scale - higher[:, None])
            fade = gl.exp2(peak - higher)
            total = total * fade + gl.sum(weights, axis=1)
            peak = higher
            out_0, out_1, low = warpgroup_mma_wait(0, deps=[begun_0, begun_1, low])
            mbarrier.arrive(shared.v_free.index((at - 1) % _STAGES))
            fade = gl.convert_layout(fade, gl.SliceLayout(1, _VALUES))
            out_0 = out_0 * fade[:, None]
            out_1 = out_1 * fade[:, None]
            low = gl.convert_layout(weights.to(dtype), _WEIGHTS)
        mbarrier.arrive(shared.q_free.index(turn % 2 * 2 + which))
        at += 1
        turn += 1  # noqa: SIM113  # the compiler has no enumerate
        # After the last tile these scores are of what lies in memory, and nobody looks at them.
        mbarrier.wait(shared.q_ready.index(turn % 2 * 2 + which), turn // 2 % 2, pred=there_is_more)
        mbarrier.wait(shared.k_ready.index(at % _STAGES), at // _STAGES % 2, pred=there_is_more)
        mbarrier.wait(shared.turns.index(which), rounds % 2)
        scores = _begin_scores(shared, turn % 2 * 2 + which, at)
        mbarrier.wait(shared.v_ready.index((at - 1) % _STAGES), (at - 1) // _STAGES % 2)
        begun_0, begun_1 = _begin_values(shared, low, out_0, out_1, at - 1)
        mbarrier.arrive(shared.turns.index(1 - which))
        rounds += 1
        scores = warpgroup_mma_wait(2, deps=[scores])
        mbarrier.arrive(shared.k_free.index(at % _STAGES), pred=there_is_more)
        weights, next_peak, next_total = _first_weights(scores, pieces, next_steps, keys, scale)
        inverse = gl.convert_layout(gl.where(total > 0, 1.0 / total, 0.0), gl.SliceLayout(1, _VALUES))
        rows = gl.arange(0, _PART, gl.SliceLayout(1, _SCORES))
        of_row = token + which * tokens + rows // PACKED
        place = (head + rows % PACKED).to(gl.int64) * stride_lh + of_row.to(gl.int64) * stride_lt
        gl.store(lse + place, (peak + gl.log2(total)) * _LN2, mask=of_row < seqlen_q)
        out_0, out_1, low = warpgroup_mma_wait(0, deps=[begun_0, begun_1, low])
        mbarrier.arrive(shared.v_free.index((at - 1) % _STAGES))
        low = gl.convert_layout(weights.to(dtype), _WEIGHTS)
        tma.store_wait(0)  # the results of the tile before have left shared memory
        shared.out.index(2 * which).store((out_0 * inverse[:, None]).to(dtype))
        shared.out.index(2 * which + 1).store((out_1 * inverse[:, None]).to(dtype))
        fence_async_shared()
        for half in gl.static_range(2):
            results = shared.out.index(2 * which + half).reshape([tokens, PACKED, _PART])
            _store(out, [token + which * tokens, head, half * _PART], results)
        token, head, steps, peak, total = next_token, next_head, next_steps, next_peak, next_total
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "stride_lh",
        "stride_lt",
        "programs",
        "num_tiles",
        "num_lists",
        "heads_a_mask",
        "group",
        "seqlen_q",
        "seqlen_k",
        "scale",
    ]
)
def attend(
    q,
    k,
    v,
    out,
    lse,
    order,
    tiles,
    entries,
    offsets,
    stride_lh,
    stride_lt,
    programs,
    num_tiles,
    num_lists,
    heads_a_mask,
    group,
    unit,
    seqlen_q,
    seqlen_k,
    scale,
    PACKED: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """One program: some tiles of 128 rows, queries of one block under PACKED heads that share a mask and a KV head.

    Args:
        q: Descriptor of [Tq, Hq, 128], with blocks [64 / PACKED, PACKED, 64].
        k: Descriptor of [Tk, Hkv, 128], with blocks [64, 1, 64].
        v: The same.
        out: Descriptor as for q, written.
        lse: float32 [Hq, Tq], written.
        group: Query heads a KV head.
        seqlen_q: Queries.
        scale: Factor on the scores, for powers of two.
        PACKED: Query heads that are rows of one tile: a power of two of at most 64.
        LAYOUT: The layout of a block [rows, 64] in shared memory.

    The other arguments are those of `_Tables`.
    """
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    shared = _Shared(
        gl.allocate_shared_memory(q.dtype, [8, _PART, _PART], LAYOUT),
        gl.allocate_shared_memory(q.dtype, [2 * _STAGES, _STEP, _PART], LAYOUT),
        gl.allocate_shared_memory(q.dtype, [2 * _STAGES, _STEP, _PART], LAYOUT),
        gl.allocate_shared_memory(q.dtype, [4, _PART, _PART], LAYOUT),
        gl.allocate_shared_memory(gl.int64, [4, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [4, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [_STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [_STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [_STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [_STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [2, 1], barriers),
    )
    for i in gl.static_range(4):
        mbarrier.init(shared.q_ready.index(i), count=1)
        mbarrier.init(shared.q_free.index(i), count=1)
    for i in gl.static_range(_STAGES):
        mbarrier.init(shared.k_ready.index(i), count=1)
        mbarrier.init(shared.k_free.index(i), count=2)
        mbarrier.init(shared.v_ready.index(i), count=1)
        mbarrier.init(shared.v_free.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(shared.turns.index(i), count=1)
    fence_async_shared()
    mbarrier.arrive(shared.turns.index(0))
    tables = _Tables(order, tiles, entries, offsets, programs, num_tiles, num_lists, heads_a_mask, unit, seqlen_k)
    gl.warp_specialize(
        [
            (_compute, (0, out, lse, shared, tables, stride_lh, stride_lt, seqlen_q, scale, PACKED)),
            (_compute, (1, out, lse, shared, tables, stride_lh, stride_lt, seqlen_q, scale, PACKED)),
            (_copy, (q, k, v, shared, tables, group, PACKED)),
        ],
        [4, 1],
        [240, 24],
    )
