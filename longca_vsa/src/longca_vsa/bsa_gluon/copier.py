"""The warp of bsa_gluon that copies: queries, keys and values of all tasks of a program, by the tensor memory
accelerator.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from longca_vsa.bsa_gluon.tasks import PART, STAGES, STEP, task_of
from longca_vsa.gluon import load

__all__ = ["copy_all"]


@gluon.jit
def _copy_step(source, target, ready, tasks, first, pieces, steps, step, head, stage):
    """Brings the keys or values of a step."""
    per_step: gl.constexpr = STEP // PART
    mbarrier.expect(ready.index(stage), 2 * STEP * PART * 2)
    for piece in gl.static_range(per_step):
        # Counted from the end of the list. The first step may have pieces too many. They are hidden, and must be zeros:
        # a weight of 0 times a value of NaN would be NaN. Past the last key the accelerator brings zeros.
        back = step * per_step + piece - (steps * per_step - pieces)
        index = gl.maximum(pieces - 1 - gl.maximum(back, 0), 0)
        block = gl.load(tasks.entries + first + index // tasks.unit).to(gl.int32)
        key = gl.where(back < 0, tasks.seqlen_k, (block * tasks.unit + index % tasks.unit) * PART)
        for half in gl.static_range(2):
            there = target.index(2 * stage + half).reshape([STEP, 1, PART]).slice(piece * PART, PART)
            load(source, [key, head, half * PART], ready.index(stage), there)


@gluon.jit
def copy_all(q, k, v, shared, tasks, group, PACKED: gl.constexpr):
    """Brings the queries, keys and values of all tasks of the program.

    Args:
        q: Descriptor of [Tq, Hq, 128], with blocks [64 / PACKED, PACKED, 64].
        k: Descriptor of [Tk, Hkv, 128], with blocks [64, 1, 64].
        v: Descriptor of [Tk, Hkv, 128], with blocks [64, 1, 64].
        shared: Shared memory, of the type `Shared`.
        tasks: The tasks, of the type `Tasks`.
        group: Query heads a KV head.
        PACKED: Query heads that are rows of one tile.
    """
    tokens: gl.constexpr = PART // PACKED
    at, turn = 0, 0
    for task in range(gl.program_id(0), tasks.num_tasks, gl.num_programs(0)):
        token, head, first, pieces, steps, _ = task_of(tasks, task, PACKED)
        for which in gl.static_range(2):
            slot = turn % 2 * 2 + which
            mbarrier.wait(shared.q_free.index(slot), turn // 2 % 2 ^ 1)
            mbarrier.expect(shared.q_ready.index(slot), 2 * PART * PART * 2)
            for half in gl.static_range(2):
                rows = shared.q.index(2 * slot + half).reshape([tokens, PACKED, PART])
                load(q, [token + which * tokens, head, half * PART], shared.q_ready.index(slot), rows)
        for step in range(steps):
            stage, phase = at % STAGES, at // STAGES % 2 ^ 1
            mbarrier.wait(shared.k_free.index(stage), phase)
            _copy_step(k, shared.k, shared.k_ready, tasks, first, pieces, steps, step, head // group, stage)
            mbarrier.wait(shared.v_free.index(stage), phase)
            _copy_step(v, shared.v, shared.v_ready, tasks, first, pieces, steps, step, head // group, stage)
            at += 1
        turn += 1  # noqa: SIM113  # the compiler has no enumerate
