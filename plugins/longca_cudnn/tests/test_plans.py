"""Plans without cuDNN: the graph for each mask, and its inputs."""

from __future__ import annotations

from longca import Device, Problem, masks
from longca.masks import Form, Window
from longca_cudnn.plans import make_plan
from longca_cudnn.specs import OPERANDS, Uid


def plan_of(mask, form, **options):
    common = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "device": Device("cpu"), "direction": "backward"}
    return make_plan(Problem(mask=mask, **{**common, **options}), form)


def test_a_square_mask_starts_its_diagonal_in_the_first_corner():
    spec = plan_of(masks.build("causal", 300), Form.CAUSAL).packed_spec("forward")
    assert (spec.batch, spec.seqlen_q, spec.seqlen_k, spec.ragged) == (1, 300, 300, None)
    assert (spec.window, spec.bottom_right) == (Window(None, 0), False)
    assert spec.layout(Uid.Q) == ([1, 8, 300, 64], [300 * 512, 64, 512, 1])
    assert spec.layout(Uid.V) == ([1, 2, 300, 64], [300 * 128, 64, 128, 1])
    assert spec.lse_layout == ([1, 8, 300, 1], [2400, 300, 1, 1])


def test_documents():
    plan = plan_of(masks.build("causal_document", 300, documents=[100, 1, 150, 49]), Form.VARLEN)
    assert (plan.batch, plan.seqlen_q, plan.seqlen_k, plan.ragged) == (4, 192, 192, (384, 384))
    assert plan.lengths_q.tolist() == plan.lengths_k.tolist() == [100, 1, 150, 49]
    assert plan.offsets(Uid.Q, 512).tolist() == [512 * start for start in (0, 100, 101, 251, 300)]
    assert plan.offsets(Uid.DV, 128).tolist() == [128 * start for start in (0, 100, 101, 251, 300)]
    assert plan.offsets(Uid.LSE, 8).tolist() == [8 * start for start in (0, 100, 101, 251, 300)]
    assert plan.blind_q is plan.blind_k is None
    assert plan.metadata_bytes == 2 * 5 * 8 + 2 * 4 * 4 + 3 * 5 * 8


def test_masks_that_differ_a_little_share_a_graph():
    lengths = [[1000, 1100, 1996], [1001, 1099, 1996], [990, 1110, 1996], [1096, 1020, 1980]]
    plans = [plan_of(masks.build("causal_document", 4096, documents=x), Form.VARLEN) for x in lengths]
    for direction in OPERANDS:
        assert len({plan.packed_spec(direction) for plan in plans}) == 1
