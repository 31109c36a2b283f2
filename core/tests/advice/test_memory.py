"""What a call takes on a rank: its parts, the moment of its peak, and what nobody states."""

from dataclasses import replace

import pytest

from longca import masks, registry
from longca.errors import UnknownNameError, UnsupportedError
from longca.manifests import Device, Problem
from longca.masks import Form
from longca_advice.memory import gradient_bytes, held_bytes, rank_bytes, tensor_bytes

HOPPER = Device("cuda", (9, 0))


def _problem(seqlen=4096, pattern="causal", **fields):
    mask = masks.build(pattern, seqlen=seqlen)
    return Problem(**{"mask": mask, "heads_q": 8, "heads_kv": 2, "device": HOPPER, **fields})


def test_tensors_are_counted_one_by_one():
    problem = _problem()
    token = 128 * 2
    q, k, lse = 4096 * 8 * token, 4096 * 2 * token, 4096 * 8 * 4
    assert tensor_bytes(problem, 4096, 4096) == 2 * q + 2 * k + lse
    assert tensor_bytes(problem, 4096, 4096, training=True) == 3 * q + 2 * k + lse
    assert gradient_bytes(problem, 4096, 4096) == q + 2 * k
    assert [held_bytes(problem, 4096, 4096, training=both) for both in (False, True)] == [
        2 * q + 2 * k + lse, 4 * q + 4 * k + lse,
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_an_element_has_the_size_of_its_dtype(dtype):
    size = {"float64": 8, "float32": 4, "float16": 2}[dtype]
    problem = _problem(dtype=dtype)
    assert tensor_bytes(problem, 1, 0) == 2 * 8 * 128 * size + 8 * max(4, size)


def test_a_forward_alone_has_no_gradients():
    found = rank_bytes(registry(), _problem(), "sdpa")
    assert found.parts == {"tensors": tensor_bytes(_problem(), 4096, 4096)}
    assert found.unknown == ()


def test_training_peaks_in_the_backward():
    found, problem = rank_bytes(registry(), _problem(), "sdpa", training=True), _problem()
    assert set(found.parts) == {"tensors", "gradients", "workspace"}
    assert found.parts["gradients"] == gradient_bytes(problem, 4096, 4096)
    assert found.total == sum(found.parts.values())


def test_a_large_forward_workspace_is_the_peak():
    problem = _problem(2048, head_dim=8, heads_q=64, heads_kv=64)
    forward, trained = (rank_bytes(registry(), problem, "naive", "sdpa", training=both) for both in (False, True))
    assert trained.parts["workspace"] == forward.parts["workspace"]
    assert "gradients" not in trained.parts


def test_a_pair_has_two_plans():
    problem = _problem(1024, "full")
    problem = problem.with_mask(masks.build("causal_document", seqlen=1024, documents=[600, 424]))
    single = rank_bytes(registry(), problem, "sdpa", training=True).parts["plan"]
    assert single == 1024 * 1024 * 2
    assert rank_bytes(registry(), problem, "naive", "sdpa", training=True).parts["plan"] == single


def test_what_nobody_states_is_said(monkeypatch):
    found = registry()
    silent = found.manifest("sdpa").model_copy(update={"workspace": None, "plan_bytes": None})
    monkeypatch.setitem(found.kernels, "sdpa", silent)
    assert rank_bytes(found, _problem(), "sdpa", training=True).unknown == ("workspace of sdpa", "plan of sdpa")


def test_an_unknown_kernel_and_one_that_does_not_take_it():
    with pytest.raises(UnknownNameError):
        rank_bytes(registry(), _problem(), "nobody")
    with pytest.raises(UnsupportedError):
        rank_bytes(registry(), _problem(dtype="float64"), "sdpa")


def test_every_core_kernel_states_its_memory():
    for name in ("naive", "sdpa"):
        manifest = registry().manifest(name)
        assert manifest.workspace
        assert manifest.plan_bytes


def test_a_billion_tokens_need_no_matrix():
    problem = _problem(10**9)
    found = rank_bytes(registry(), problem, "naive", training=True)
    assert found.parts["tensors"] == tensor_bytes(problem, 10**9, 10**9, training=True)


def test_the_direction_asked_makes_no_difference():
    problem = _problem()
    other = replace(problem, direction="backward")
    assert rank_bytes(registry(), problem, "sdpa") == rank_bytes(registry(), other, "sdpa")
    assert problem.mask.admits(Form.CAUSAL)
