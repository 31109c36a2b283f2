"""The manifest's memory functions: plans are compared with real plans, workspaces with sums by hand."""

import pytest

from longca import Device, Problem, masks
from longca.masks import Form
from longca_cudnn.memory import plan_bytes, workspace
from longca_cudnn.plans import make_plan

MIB = 2**20
DOCUMENTS = masks.build("causal_document", seqlen=4096, documents=[3000, 596, 500])


def _problem(mask, direction="backward", **fields):
    device = Device("cpu")
    return Problem(**{"mask": mask, "heads_q": 64, "heads_kv": 8, "device": device, "direction": direction, **fields})


@pytest.mark.parametrize("heads_kv", [8, 64])
def test_where_documents_begin(heads_kv):
    problem = _problem(DOCUMENTS, heads_kv=heads_kv)
    assert plan_bytes(problem, Form.VARLEN) == make_plan(problem, Form.VARLEN).metadata_bytes


def test_one_document_needs_no_metadata():
    problem = _problem(masks.build("causal", seqlen=4096))
    assert plan_bytes(problem, Form.CAUSAL) == make_plan(problem, Form.CAUSAL).metadata_bytes == 0


def test_gradients_of_shared_heads():
    mask, q, lse = masks.build("causal", seqlen=4096), 64 * MIB, MIB
    assert workspace(_problem(mask, "forward"), Form.CAUSAL) == 0
    assert workspace(_problem(mask), Form.CAUSAL) == 4 * q + lse
    assert workspace(_problem(mask, heads_kv=64), Form.CAUSAL) == 2 * q + lse
    assert workspace(_problem(DOCUMENTS), Form.VARLEN) == 6 * q + 2 * lse


def test_equal_bits_cost_the_square():
    mask = masks.build("causal", seqlen=8192)
    plain, equal = (workspace(_problem(mask, deterministic=both), Form.CAUSAL) for both in (False, True))
    assert equal - plain == 8 * 2**30
