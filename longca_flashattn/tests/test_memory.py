"""The manifests' memory functions: plans are compared with real plans, workspaces with sums by hand."""

import pytest

from longca import Device, Problem, masks
from longca.masks import Form
from longca_flashattn.fa2 import FlashAttention2
from longca_flashattn.fa3 import FlashAttention3
from longca_flashattn.fa4_blocks import plan_blocks
from longca_flashattn.fa4_intervals import plan_intervals
from longca_flashattn.memory import calls_plan, fa2_workspace, fa3_plan, fa3_workspace, fa4_plan, fa4_workspace

CPU = Device("cpu")
STATIC = [pattern for pattern in masks.PATTERNS if not pattern.endswith("block_sparse")]
DOCUMENTS = masks.build("causal_document", seqlen=4096, documents=[3000, 1096])
MIB = 2**20


def _problem(mask, direction="backward", **fields):
    return Problem(**{"mask": mask, "heads_q": 64, "heads_kv": 8, "device": CPU, "direction": direction, **fields})


@pytest.mark.parametrize("pattern", STATIC)
def test_bounds_of_documents(pattern, monkeypatch):
    monkeypatch.setattr(FlashAttention3, "backend", lambda kernel, problem: "")
    mask = masks.sample(pattern, seqlen=3000, seed=1)
    for kernel, stated in ((FlashAttention2(), calls_plan), (FlashAttention3(), fa3_plan)):
        plan = kernel.plan(_problem(mask))
        assert stated(_problem(mask), plan.form) == plan.metadata_bytes


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("pattern", STATIC)
def test_intervals_and_lists(pattern, direction):
    problem = _problem(masks.sample(pattern, seqlen=3000, seed=1), direction)
    assert fa4_plan(problem, Form.ROW_INTERVALS) == plan_intervals(problem, "fa4").metadata_bytes


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("heads", [1, 8, 64])
@pytest.mark.parametrize("block", [16, 48, 64, 128, 256, None])
def test_lists_of_blocks(block, heads, direction):
    bounds = (0, 3, 64, 65, 130, 700, 1100)
    mask = (
        masks.build("variable_block_sparse", 1100, boundaries=bounds, kept=0.4, heads=heads, seed=1)
        if block is None
        else masks.build("uniform_block_sparse", 1100, block=block, kept=0.4, heads=heads, seed=1)
    )
    problem = _problem(mask, direction)
    assert fa4_plan(problem, Form.BLOCK_SPARSE) == plan_blocks(problem, "fa4").metadata_bytes


@pytest.mark.parametrize("workspace", [fa2_workspace, fa3_workspace, fa4_workspace])
def test_one_call_forward_takes_nothing(workspace):
    assert workspace(_problem(DOCUMENTS, "forward"), Form.VARLEN) == 0


def test_fa2_expands_kv_heads_and_pads_documents():
    whole = _problem(masks.build("causal", seqlen=4096))
    expanded, sums = 2 * 64 * MIB, 128 * MIB + MIB
    assert fa2_workspace(whole, Form.CAUSAL) == expanded + sums
    assert fa2_workspace(_problem(DOCUMENTS), Form.VARLEN) == expanded + sums * (4096 + 256) // 4096
    assert fa2_workspace(_problem(whole.mask, heads_kv=64), Form.CAUSAL) == sums


def test_fa4_sums_each_kv_head_in_float32():
    whole = _problem(masks.build("causal", seqlen=4096))
    assert fa4_workspace(whole, Form.CAUSAL) == 128 * MIB + 2 * MIB + 2 * 16 * MIB
    assert fa3_workspace(whole, Form.CAUSAL) == fa4_workspace(whole, Form.CAUSAL) + 4 * 64 * 64


def test_layers_that_share_rows_have_results_of_their_own():
    mask = masks.build("global_sliding_window", seqlen=4096, window=100, global_tokens=70)
    q, k, lse = 64 * MIB, 8 * MIB, MIB
    assert len(mask.layers) == 3
    assert fa2_workspace(_problem(mask, "forward"), Form.LAYERS) == 3 * (q + lse)
    assert fa3_workspace(_problem(mask, "forward"), Form.LAYERS) == 2 * (q + lse)
    assert fa3_workspace(_problem(mask), Form.LAYERS) > 2 * q + 6 * k
    assert fa2_workspace(_problem(mask), Form.LAYERS) > fa3_workspace(_problem(mask), Form.LAYERS)


@pytest.mark.parametrize("heads_kv", [8, 64])
def test_layers_as_one_call_copy_keys(heads_kv):
    mask = masks.build("shared_question", seqlen=4096, documents=[1000, 2000, 1096])
    copies = 4096 + 1000  # the question's keys once more for the second answer
    row = heads_kv * 128 * 2
    assert fa3_workspace(_problem(mask, "forward", heads_kv=heads_kv), Form.LAYERS) == 2 * copies * row
    backward = _problem(mask, heads_kv=heads_kv)
    later = 4 * copies * row - 2 * 4096 * row  # copies and their gradients. dk and dv come after the call.
    within = fa4_workspace(_problem(DOCUMENTS, heads_kv=heads_kv), Form.VARLEN)
    assert later + within < fa3_workspace(backward, Form.LAYERS) < later + 1.3 * within


def test_layers_that_are_alone_on_their_rows_need_no_results_of_their_own():
    mask = masks.build("prefix_lm_causal", seqlen=4096, prefix=1000)
    q, k, lse = 64 * MIB, 8 * MIB, MIB
    assert len(mask.layers) == 2
    assert fa3_workspace(_problem(mask, "forward"), Form.LAYERS) == lse
    assert fa2_workspace(_problem(mask, "forward"), Form.LAYERS) == 2 * (q + lse)
    gradients, sums = 4 * k, fa3_workspace(_problem(mask), Form.LAYERS) - 2 * k
    assert gradients < sums < gradients + 4 * q  # sums in float32 are twice as large as q, and rows are padded
