"""The kernel: dk and dv of 64 keys, gathered from all queries that see their block, and the gradients of scores.

A program has one tile of keys. One warp brings queries by the tensor memory accelerator, and two warp groups take a
step of 64 queries by turns: one computes weights while the other has its products. Each has sums of its own, which are
added at the end in a fixed order, so equal inputs give equal bits.

Scores are keys by queries. Transposed like this, the weights are the left operand of dk and dv, and stay in registers.
A warp group begins three products at once: the last step's for dv and dk, and the next step's for the scores. The last
step's gradients of scores leave by the accelerator meanwhile, queries by keys, as `score_tiles.py` reads them. The
fourth product, of the values and the output's gradients, runs beside the weights. More products at a time would need
more registers than a thread has.

Sources: FlashAttention-2 (arXiv 2307.08691, algorithm 2) has the backward. FlashAttention-3 (arXiv 2407.08608, section
3.1) has the warps of one task, and the turns.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from longca_triton.softmax import LOG2E
from longca_vsa.bsa.hopper.copier import NOWHERE, Strides, copy_all
from longca_vsa.bsa.hopper.program import HEAD, PART, STAGES, TILE, WIDE, Shared, program_of
from longca_vsa.bsa.hopper.results import Results, hand_over, write
from longca_vsa.gluon import store

__all__ = ["gather_dkdv"]

_LOG2E = gl.constexpr(LOG2E.value)
_LEFT = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=WIDE.value, k_width=2))


@gluon.jit
def _begin_product(left, right):
    """Begins the product of the keys or values and a step's queries or their gradients: [keys, queries]."""
    product = gl.zeros([PART, PART], gl.float32, TILE)
    return warpgroup_mma(left, right.permute((1, 0)), product, use_acc=False, is_async=True)


@gluon.jit
def _weigh(shared, scores, at, factor):
    """The weights of a step, and the gradients of its scores, in 16 bits."""
    dtype: gl.constexpr = shared.q.dtype
    stage = at % STAGES
    dweights = _begin_product(shared.v, shared.dout.index(stage))
    weights = gl.exp2(scores * factor - shared.exponents.index(stage).load(TILE))
    deltas = shared.deltas.index(stage).load(TILE)
    dweights = warpgroup_mma_wait(0, deps=[dweights])
    return weights.to(dtype), (weights * (dweights - deltas)).to(dtype)


@gluon.jit
def _keep(which: gl.constexpr, target, shared, dscores, program, at):
    """Stores the gradients of a step's scores."""
    repeat = at // program.steps
    row = program.first_row + (at - repeat * program.steps) * PART
    row = gl.where(repeat < program.heads, row, NOWHERE)  # the step of zeros has no place
    tma.store_wait(0)  # those of the step before have left shared memory
    shared.dscores.index(which).permute((1, 0)).store(dscores)
    fence_async_shared()
    store(target, [row, repeat * PART], shared.dscores.index(which))


@gluon.jit
def _compute(which: gl.constexpr, target, shared, results, program, scale, ADDS: gl.constexpr):
    """A warp group: every second step."""
    factor = scale * _LOG2E
    rounds = (program.steps * program.heads + 1) // 2
    dk = gl.zeros([PART, HEAD], gl.float32, WIDE)
    dv = gl.zeros([PART, HEAD], gl.float32, WIDE)
    if rounds > 0:
        at = which + 0 * rounds  # a number of the device, as all later ones
        mbarrier.wait(shared.kv_ready.index(0), 0)
        mbarrier.wait(shared.ready.index(at), 0)
        mbarrier.wait(shared.turns.index(which), 0)
        scores = _begin_product(shared.k, shared.q.index(at % STAGES))
        mbarrier.arrive(shared.turns.index(1 - which))
        scores = warpgroup_mma_wait(0, deps=[scores])
        weights, dscores = _weigh(shared, scores, at, factor)
        for turn in range(1, rounds):
            left, dleft = gl.convert_layout(weights, _LEFT), gl.convert_layout(dscores, _LEFT)
            ahead = at + 2
            mbarrier.wait(shared.ready.index(ahead % STAGES), ahead // STAGES % 2)
            mbarrier.wait(shared.turns.index(which), turn % 2)
            dv_begun = warpgroup_mma(left, shared.dout.index(at % STAGES), dv, is_async=True)
            dk_begun = warpgroup_mma(dleft, shared.q.index(at % STAGES), dk, is_async=True)
            scores = _begin_product(shared.k, shared.q.index(ahead % STAGES))
            mbarrier.arrive(shared.turns.index(1 - which))
            _keep(which, target, shared, dscores, program, at)
            dv, dk, scores, left, dleft = warpgroup_mma_wait(0, deps=[dv_begun, dk_begun, scores, left, dleft])
            mbarrier.arrive(shared.free.index(at % STAGES))
            at = ahead
            weights, dscores = _weigh(shared, scores, at, factor)
        left, dleft = gl.convert_layout(weights, _LEFT), gl.convert_layout(dscores, _LEFT)
        dv_begun = warpgroup_mma(left, shared.dout.index(at % STAGES), dv, is_async=True)
        dk_begun = warpgroup_mma(dleft, shared.q.index(at % STAGES), dk, is_async=True)
        _keep(which, target, shared, dscores, program, at)
        dv, dk, left, dleft = warpgroup_mma_wait(0, deps=[dv_begun, dk_begun, left, dleft])
    if which == 1:
        hand_over(shared, dk, dv)
    else:
        write(shared, results, program, dk, dv, scale, ADDS)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=["num_tiles", "num_lists", "unit", "first_head", "heads", "group", "heads_a_mask", "scale"]
)
def gather_dkdv(
    q,
    k,
    v,
    dout,
    exponents,
    deltas,
    dscores,
    dk_sums,
    dv_sums,
    dk,
    dv,
    first_rows,
    order,
    tiles,
    entries,
    offsets,
    steps,
    stride_qh,
    stride_kh,
    stride_vh,
    stride_gh,
    stride_st,
    stride_sh,
    stride_dkt,
    stride_dkh,
    stride_dvt,
    stride_dvh,
    num_tiles,
    num_lists,
    unit,
    first_head,
    heads,
    group,
    heads_a_mask,
    scale,
    ADDS: gl.constexpr,
    ROWS: gl.constexpr,
    VECTORS: gl.constexpr,
    SUMS: gl.constexpr,
):
    """One program: dk and dv of 64 keys of one block and one KV head, from some query heads of its group.

    Args:
        q: Descriptor of [Tq, Hq, 128], whose rows are tokens, with blocks [64, 128]. See `longca_triton.descriptors`.
        k: The same of [Tk, Hkv, 128].
        v: The same of [Tk, Hkv, 128].
        dout: The same of [Tq, Hq, 128].
        exponents: Descriptor of exponents, from `longca_triton.prepare`: float32 [Hq, padded], with blocks [1, 64].
        deltas: The same for deltas.
        dscores: Descriptor of stored gradients of scores, with blocks [64, 64], written.
        dk_sums: The sum of earlier launches for dk, if ADDS is set: float32 [Tk, Hkv, 128].
        dv_sums: The same for dv.
        dk: [Tk, Hkv, 128], written. The sums themselves, if other launches follow.
        dv: The same for dv.
        first_rows: The first row of each KV head's tiles in dscores: int32 [Hkv, tiles].
        order: The programs, as KV head · num_tiles + tile: int32 [programs].
        tiles: First token and one past the last token of the tile's block, first key of the tile within the block, and
            the block: int32 [tiles, 4]. Blocks are of whole tiles.
        entries: Lists of runs of query blocks, one after another: uint16 or int32 [entries + 1, 2].
        offsets: The begin of each key block's list, by mask head and block: int64 [mask heads · num_lists + 1].
        steps: The steps of each list: int32 [mask heads · num_lists].
        num_tiles: Tiles of keys.
        num_lists: Key blocks.
        unit: Tokens a query block, a multiple of 64.
        first_head: The first head of its group that the program takes.
        heads: Query heads that it takes.
        group: Query heads a KV head.
        heads_a_mask: Query heads that share a mask.
        scale: Factor on the scores.
        ROWS: The layout of a block [64, 64] of 16 bits in shared memory.
        VECTORS: The layout of a block [1, 64] of float32.
        SUMS: The layout of a block [64, 64] of float32.
    """
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        gl.allocate_shared_memory(q.dtype, [PART, HEAD], ROWS),
        gl.allocate_shared_memory(q.dtype, [PART, HEAD], ROWS),
        gl.allocate_shared_memory(q.dtype, [STAGES, PART, HEAD], ROWS),
        gl.allocate_shared_memory(q.dtype, [STAGES, PART, HEAD], ROWS),
        gl.allocate_shared_memory(gl.float32, [STAGES, 1, PART], VECTORS),
        gl.allocate_shared_memory(gl.float32, [STAGES, 1, PART], VECTORS),
        gl.allocate_shared_memory(q.dtype, [2, PART, PART], ROWS),
        gl.allocate_shared_memory(gl.float32, [PART, HEAD], SUMS),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [2, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [2, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [1, 1], barriers),
    )
    mbarrier.init(shared.kv_ready.index(0), count=1)
    mbarrier.init(shared.sums_free.index(0), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(shared.ready.index(i), count=1)
        mbarrier.init(shared.free.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(shared.turns.index(i), count=1)
        mbarrier.init(shared.sums_ready.index(i), count=1)
    fence_async_shared()
    mbarrier.arrive(shared.turns.index(0))
    program = program_of(
        order,
        tiles,
        entries,
        offsets,
        steps,
        first_rows,
        num_tiles,
        num_lists,
        unit,
        first_head,
        heads,
        group,
        heads_a_mask,
    )
    results = Results(dk_sums, dv_sums, dk, dv, stride_st, stride_sh, stride_dkt, stride_dkh, stride_dvt, stride_dvh)
    strides = Strides(stride_qh, stride_kh, stride_vh, stride_gh)
    gl.warp_specialize(
        [
            (_compute, (0, dscores, shared, results, program, scale, ADDS)),
            (_compute, (1, dscores, shared, results, program, scale, ADDS)),
            (copy_all, (q, k, v, dout, exponents, deltas, strides, shared, program)),
        ],
        [4, 1],
        [240, 24],
    )
