"""Changed inputs have exactly the results that undoing promises, and no head keeps its results."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longca.manifests import Device, Problem
from longca.masks import BlockSparseMask, build
from longca_bench.verification.change import Change
from longca_bench.verification.inputs import draw_inputs
from longca_builtin.blockwise import attention_backward, attention_forward


def problem(heads, mask=None, dtype="float32"):
    about = {"heads_q": heads[0], "heads_kv": heads[1], "head_dim": 16, "dtype": dtype, "device": Device("cpu")}
    return Problem(mask=mask or build("causal", 40), direction="backward", **about)


def results(asked, x, dtype):
    mask, scale = asked.concrete_mask, asked.scale
    out, lse = attention_forward(x.q, x.k, x.v, mask, scale, dtype)
    dq, dk, dv = attention_backward(x.dout, x.q, x.k, x.v, out.to(x.q.dtype), lse, mask, scale, dtype)
    return {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def per_head(count):
    generator = torch.Generator().manual_seed(3)
    kept = torch.rand((count, 5, 5), generator=generator) < 0.5
    kept |= torch.eye(5, dtype=torch.bool)
    return BlockSparseMask(kept.numpy(), range(0, 41, 8), range(0, 41, 8))


@given(seed=st.integers(0, 2**32), heads=st.sampled_from([(1, 1), (4, 2), (3, 3), (6, 1)]), shared=st.booleans())
def test_undoing_is_exact(seed, heads, shared):
    asked = problem(heads, None if shared else per_head(heads[1]), "float64")
    drawn, source = draw_inputs(asked, 0), random.Random(seed)
    wanted, changed = results(asked, drawn, torch.float64), drawn.clone()
    change = Change.none(asked)
    for _ in range(2):
        change = Change.draw(asked, change, source)
        change.apply(drawn, changed)
        for name, result in results(asked, changed, torch.float64).items():
            torch.testing.assert_close(change.undo(name, result), wanted[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (4, 2)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_every_head_has_other_results_after_a_change(heads, dtype):
    asked = problem(heads, dtype=dtype)
    drawn = draw_inputs(asked, 0)
    first, second, change = drawn.clone(), drawn.clone(), Change.none(asked)
    for seed in range(20):
        last, change = change, Change.draw(asked, change, random.Random(seed))
        last.apply(drawn, first)
        change.apply(drawn, second)
        before, after = results(asked, first, torch.float32), results(asked, second, torch.float32)
        for name in ("out", "dq", "dk", "dv"):
            same = torch.isclose(before[name], after[name], rtol=0.1).all(dim=2).all(dim=0)
            assert not same.any(), (name, change, last)


def test_heads_with_masks_of_their_own_keep_their_places():
    for heads, masks, q_moves in (((4, 2), 2, True), ((4, 2), 4, False)):
        asked = problem(heads, per_head(masks))
        changes = [Change.draw(asked, Change.none(asked), random.Random(seed)) for seed in range(20)]
        assert {change.order_kv for change in changes} == {tuple(range(heads[1]))}
        assert (len({change.order_q for change in changes}) > 1) is q_moves
        assert all({head // 2 for head in change.order_q[:2]} == {0} for change in changes)


def test_a_head_has_its_place_among_the_changed_ones():
    asked = problem((6, 3))
    drawn, change = draw_inputs(asked, 0), Change.draw(asked, Change.none(asked))
    for name, result, heads in (("q", "out", 6), ("k", "dk", 3)):
        source = getattr(drawn, name)
        changed = change.made(name, source)
        for head in range(heads):
            assert torch.equal(changed[:, change.place(result, head)].abs(), source[:, head].abs())
    assert change.place("counts", 5) == change.place("lse", 5) == change.place("dq", 5)
