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

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from longca_triton.softmax import LN2
from longca_vsa.bsa_gluon.copier import copy_all
from longca_vsa.bsa_gluon.tasks import PART, STAGES, STEP, Shared, Tasks, task_of
from longca_vsa.gluon import store

__all__ = ["attend"]

_LN2 = gl.constexpr(LN2.value)
#: The layouts of scores, and of halves of weighted values.
_SCORES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16]))
_VALUES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))
_WEIGHTS = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=_VALUES.value, k_width=2))


@gluon.jit
def _begin_scores(shared, slot, at):
    """Begins the product of a tile's queries and a step's keys."""
    stage = 2 * (at % STAGES)
    scores = gl.zeros([PART, STEP], gl.float32, _SCORES)
    for half in gl.static_range(2):
        keys = shared.k.index(stage + half).permute((1, 0))
        scores = warpgroup_mma(shared.q.index(2 * slot + half), keys, scores, use_acc=half == 1, is_async=True)
    return scores


@gluon.jit
def _begin_values(shared, weights, out_0, out_1, at):
    """Begins to add the product of weights and a step's values."""
    stage = 2 * (at % STAGES)
    out_0 = warpgroup_mma(weights, shared.v.index(stage), out_0, is_async=True)
    return out_0, warpgroup_mma(weights, shared.v.index(stage + 1), out_1, is_async=True)


@gluon.jit
def _begin_step(which: gl.constexpr, shared, slot, weights, out_0, out_1, at, rounds, is_there):
    """The scores of a step, and the begun products of the weights and the values of the step before.

    Args:
        which: The warp group, whose turn it is after so many `rounds`.
        slot: The place of its queries.
        weights: Weights of the step before.
        at: The step, counted over all tasks.
        is_there: Whether there is such a step. If not, nobody looks at its scores.
    """
    mbarrier.wait(shared.k_ready.index(at % STAGES), at // STAGES % 2, pred=is_there)
    mbarrier.wait(shared.turns.index(which), rounds % 2)
    scores = _begin_scores(shared, slot, at)
    mbarrier.wait(shared.v_ready.index((at - 1) % STAGES), (at - 1) // STAGES % 2)
    out_0, out_1 = _begin_values(shared, weights, out_0, out_1, at - 1)
    mbarrier.arrive(shared.turns.index(1 - which))
    scores = warpgroup_mma_wait(2, deps=[scores])
    mbarrier.arrive(shared.k_free.index(at % STAGES), pred=is_there)
    return scores, out_0, out_1


@gluon.jit
def _first_weights(scores, pieces, steps, keys, scale):
    """Weights of a tile's first step, where keys are hidden: the weights, and each row's peak and sum."""
    place = gl.arange(0, STEP, gl.SliceLayout(0, _SCORES)) - (steps * STEP - pieces * PART)
    seen = (place >= 0) & ((place >= PART) | (place < keys))
    scores = gl.where(seen[None, :], scores, float("-inf"))
    peak = gl.max(scores, axis=1) * scale
    peak = gl.where(peak == float("-inf"), 0.0, peak)  # a row that sees nothing has weights of 0
    weights = gl.exp2(scores * scale - peak[:, None])
    return weights, peak, gl.sum(weights, axis=1)


@gluon.jit
def _compute(which: gl.constexpr, out, lse, shared, tasks, stride_lh, stride_lt, seqlen_q, scale, PACKED: gl.constexpr):
    """A warp group: attention of its rows of all tasks of the program."""
    tokens: gl.constexpr = PART // PACKED
    dtype: gl.constexpr = shared.q.dtype
    token, head, _first, pieces, steps, keys = task_of(tasks, gl.program_id(0), PACKED)
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
    for task in range(gl.program_id(0), tasks.num_tasks, gl.num_programs(0)):
        # The next tile's numbers are loaded now, so that nobody waits for them.
        there_is_more = task + gl.num_programs(0) < tasks.num_tasks
        following = gl.where(there_is_more, task + gl.num_programs(0), task)
        next_token, next_head, _first, pieces, next_steps, keys = task_of(tasks, following, PACKED)
        out_0 = gl.zeros([PART, PART], gl.float32, _VALUES)
        out_1 = gl.zeros([PART, PART], gl.float32, _VALUES)
        for _ in range(1, steps):
            at += 1
            scores, begun_0, begun_1 = _begin_step(
                which, shared, turn % 2 * 2 + which, low, out_0, out_1, at, rounds, True
            )
            rounds += 1
            higher = gl.maximum(peak, gl.max(scores, axis=1) * scale)
            weights = gl.exp2(scores * scale - higher[:, None])
            fade = gl.exp2(peak - higher)
            total = total * fade + gl.sum(weights, axis=1)
            peak = higher
            out_0, out_1, low = warpgroup_mma_wait(0, deps=[begun_0, begun_1, low])
            mbarrier.arrive(shared.v_free.index((at - 1) % STAGES))
            fade = gl.convert_layout(fade, gl.SliceLayout(1, _VALUES))
            out_0 = out_0 * fade[:, None]
            out_1 = out_1 * fade[:, None]
            low = gl.convert_layout(weights.to(dtype), _WEIGHTS)
        mbarrier.arrive(shared.q_free.index(turn % 2 * 2 + which))
        at += 1
        turn += 1  # noqa: SIM113  # the compiler has no enumerate
        # After the last tile these scores are of what lies in memory, and nobody looks at them.
        mbarrier.wait(shared.q_ready.index(turn % 2 * 2 + which), turn // 2 % 2, pred=there_is_more)
        scores, begun_0, begun_1 = _begin_step(
            which, shared, turn % 2 * 2 + which, low, out_0, out_1, at, rounds, there_is_more
        )
        rounds += 1
        weights, next_peak, next_total = _first_weights(scores, pieces, next_steps, keys, scale)
        inverse = gl.convert_layout(gl.where(total > 0, 1.0 / total, 0.0), gl.SliceLayout(1, _VALUES))
        rows = gl.arange(0, PART, gl.SliceLayout(1, _SCORES))
        of_row = token + which * tokens + rows // PACKED
        place = (head + rows % PACKED).to(gl.int64) * stride_lh + of_row.to(gl.int64) * stride_lt
        gl.store(lse + place, (peak + gl.log2(total)) * _LN2, mask=of_row < seqlen_q)
        out_0, out_1, low = warpgroup_mma_wait(0, deps=[begun_0, begun_1, low])
        mbarrier.arrive(shared.v_free.index((at - 1) % STAGES))
        low = gl.convert_layout(weights.to(dtype), _WEIGHTS)
        tma.store_wait(0)  # the results of the tile before have left shared memory
        shared.out.index(2 * which).store((out_0 * inverse[:, None]).to(dtype))
        shared.out.index(2 * which + 1).store((out_1 * inverse[:, None]).to(dtype))
        fence_async_shared()
        for half in gl.static_range(2):
            results = shared.out.index(2 * which + half).reshape([tokens, PACKED, PART])
            store(out, [token + which * tokens, head, half * PART], results)
        token, head, steps, peak, total = next_token, next_head, next_steps, next_peak, next_total
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "stride_lh",
        "stride_lt",
        "num_tasks",
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
    num_tasks,
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
    """One program: some tasks, one after another. A task is a tile of 128 rows, queries of one block under PACKED heads
    that share a mask and a KV head.

    Args:
        q: Descriptor of [Tq, Hq, 128], with blocks [64 / PACKED, PACKED, 64].
        k: Descriptor of [Tk, Hkv, 128], with blocks [64, 1, 64].
        v: Descriptor of [Tk, Hkv, 128], with blocks [64, 1, 64].
        out: Descriptor of [Tq, Hq, 128], with blocks [64 / PACKED, PACKED, 64], written.
        lse: float32 [Hq, Tq], written.
        stride_lh: Elements from a head of lse to the next.
        stride_lt: Elements from a token of lse to the next.
        group: Query heads a KV head.
        unit: Pieces of a key block. The compiler may know that it is 1, so that nothing is divided.
        seqlen_q: Queries.
        scale: Factor on the scores, for powers of two.
        PACKED: Query heads that are rows of one tile: a power of two of at most 64.
        LAYOUT: The layout of a block [rows, 64] in shared memory.

    `Tasks` has the other arguments.
    """
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        gl.allocate_shared_memory(q.dtype, [8, PART, PART], LAYOUT),
        gl.allocate_shared_memory(q.dtype, [2 * STAGES, STEP, PART], LAYOUT),
        gl.allocate_shared_memory(q.dtype, [2 * STAGES, STEP, PART], LAYOUT),
        gl.allocate_shared_memory(q.dtype, [4, PART, PART], LAYOUT),
        gl.allocate_shared_memory(gl.int64, [4, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [4, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers),
        gl.allocate_shared_memory(gl.int64, [2, 1], barriers),
    )
    for i in gl.static_range(4):
        mbarrier.init(shared.q_ready.index(i), count=1)
        mbarrier.init(shared.q_free.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(shared.k_ready.index(i), count=1)
        mbarrier.init(shared.k_free.index(i), count=2)
        mbarrier.init(shared.v_ready.index(i), count=1)
        mbarrier.init(shared.v_free.index(i), count=2)
    for i in gl.static_range(2):
        mbarrier.init(shared.turns.index(i), count=1)
    fence_async_shared()
    mbarrier.arrive(shared.turns.index(0))
    tasks = Tasks(order, tiles, entries, offsets, num_tasks, num_tiles, num_lists, heads_a_mask, unit, seqlen_k)
    gl.warp_specialize(
        [
            (_compute, (0, out, lse, shared, tasks, stride_lh, stride_lt, seqlen_q, scale, PACKED)),
            (_compute, (1, out, lse, shared, tasks, stride_lh, stride_lt, seqlen_q, scale, PACKED)),
            (copy_all, (q, k, v, shared, tasks, group, PACKED)),
        ],
        [4, 1],
        [240, 24],
    )
