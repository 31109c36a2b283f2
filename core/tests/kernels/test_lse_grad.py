"""Kernels that are differentiable in (out, lse) only: alone, and as parts of a larger softmax."""

import pytest
import torch

from longca import masks
from longca.kernels.lse_grad import backward_through_lse

from .cases import gappy_mask, inputs, pattern_mask, per_head_mask, problem, run, run_in_parts, truth
from .reference import BOUNDS, assert_close
from .toys import Differentiable

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
MASKS = {
    "full": lambda: pattern_mask("full"),
    "causal": lambda: pattern_mask("causal"),
    "uneven": lambda: pattern_mask("causal", 101),
    "shared_question": lambda: pattern_mask("shared_question"),
    "per-kv-head": lambda: per_head_mask(2),
    "per-query-head": lambda: per_head_mask(8),
    "gappy": gappy_mask,
    "empty": lambda: masks.build("causal", 64).cut([(0, 20)], [(30, 60)]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_alone(name, dtype):
    mask = MASKS[name]()
    given = inputs(mask, 8, 2, dtype=dtype)
    result = run(Differentiable(), mask, given)
    assert [x.dtype for x in result[2:]] == [dtype] * 3
    assert_close(result, truth(mask, given), BOUNDS[dtype])


@pytest.mark.parametrize("cuts", [(20,), (1, 12)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_as_parts_of_a_larger_softmax(name, cuts):
    # In all but the full one there are queries that see nothing of one part and something of another.
    mask = MASKS[name]()
    given = inputs(mask, 8, 2)
    assert_close(run_in_parts(Differentiable(), mask, given, cuts), truth(mask, given), BOUNDS[torch.float64])


def test_it_needs_no_gradients_switched_on_and_leaves_none_behind():
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2)
    given.q.requires_grad_()
    with torch.no_grad():
        result = run(Differentiable(), mask, given)
        assert not torch.is_grad_enabled()
    assert_close(result, truth(mask, given), BOUNDS[torch.float64])
    assert given.q.grad is None
    assert not any(x.requires_grad for x in result)


def test_it_works_inside_a_custom_operator():
    # There PyTorch takes autograd out of the dispatch; longca.attention calls kernels from inside one.
    mask = pattern_mask("causal")
    given = inputs(mask, 4, 2)
    plan = Differentiable().plan(problem(mask, given))
    out, lse = Differentiable().forward(given.q, given.k, given.v, plan)

    @torch.library.custom_op("longca_test::backward", mutates_args=())
    def operator(dout: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        attend = Differentiable()._attend
        return backward_through_lse(lambda *qkv: attend(*qkv, plan), dout, q, given.k, given.v, out, lse)[0]

    expected = truth(mask, given).dq
    for q in (given.q, given.q.clone().requires_grad_()):
        assert (operator(given.dout, q) - expected).abs().max() < 1e-12
