import numpy as np
import pytest
import torch

from longca import masks
from longca.errors import RequestError, UnknownNameError
from longca.manifests import Device, Problem

CPU = Device("cpu")


def problem(**fields):
    return Problem(**{"mask": masks.build("causal", 64), "heads_q": 8, "device": CPU, **fields})


def test_flops_are_those_of_the_visible_pairs():
    asked = problem(head_dim=32)
    assert asked.area == 8 * 64 * 65 // 2
    assert asked.flops == 4 * 32 * asked.area
    assert problem(head_dim=32, direction="backward").flops == asked.flops * 5 // 2


def test_a_forward_leaves_nothing_to_another_kernel():
    after_another = problem(direction="backward", backward_only=True, composed=True)
    assert after_another.in_direction("forward") == problem(composed=True)
    assert after_another.in_direction("backward") == after_another


def test_area_counts_every_query_head_of_a_mask_with_heads():
    mask = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=2, seed=0)
    assert problem(mask=mask, heads_q=8, heads_kv=2).area == mask.area * 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads_q": 0}, "heads_q is 0"),
        ({"heads_q": 8.0}, "heads_q is 8.0"),
        ({"head_dim": 2**20}, "head_dim is"),
        ({"heads_kv": 16}, "do not divide"),
        ({"mask": "causal"}, r"mask is a str; build one with longca\.masks\.build"),
        ({"backward_only": True}, 'backward_only was asked with direction "forward"'),
    ],
)
def test_what_no_problem_may_ask(fields, message):
    with pytest.raises(RequestError, match=message):
        problem(**fields)


@pytest.mark.parametrize("dtype", ["bf16", "BF16", "torch.bfloat16", torch.bfloat16])
def test_a_dtype_is_known_by_its_short_name_and_by_pytorchs(dtype):
    assert problem(dtype=dtype) == problem(dtype="bfloat16")


@pytest.mark.parametrize("fields", [{"dtype": "bfloat"}, {"direction": "backwards"}])
def test_unknown_names_say_what_is_near(fields):
    with pytest.raises(UnknownNameError, match="Did you mean"):
        problem(**fields)


def test_a_masks_heads_must_be_those_of_q_or_k():
    mask = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=4, seed=0)
    assert problem(mask=mask, heads_q=4)
    assert problem(mask=mask, heads_q=8, heads_kv=4)
    with pytest.raises(RequestError, match="the mask has 4 heads"):
        problem(mask=mask, heads_q=8, heads_kv=2)


BLOCKS = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=8, seed=0)
BY_KV_HEAD = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=4, seed=0)


@pytest.mark.parametrize("heads", [(range(2, 4), range(1, 2)), ((0, 1, 6, 7), (0, 3))])
@pytest.mark.parametrize("ranges", [None, (((0, 70), (200, 256)), ((64, 256),))])
@pytest.mark.parametrize("mask", [masks.build("causal", 256), BLOCKS, BY_KV_HEAD], ids=["shared", "query", "kv"])
def test_some_heads_and_tokens_ask_for_their_part_of_the_mask(mask, heads, ranges):
    heads_q, heads_kv = heads
    asked = problem(mask=mask, heads_kv=4, direction="backward", dtype="float16")
    part = asked.narrowed(heads_q, heads_kv, ranges)
    assert (part.heads_q, part.heads_kv) == (len(heads_q), len(heads_kv))
    assert (part.direction, part.dtype) == ("backward", "float16")
    queries, keys = ([i for start, stop in pairs for i in range(start, stop)] for pairs in ranges or [((0, 256),)] * 2)
    picked = {1: (0,), 4: heads_kv, 8: heads_q}[mask.heads]
    shown = mask.dense().reshape(mask.heads, 256, 256)[np.ix_(picked, queries, keys)]
    assert (part.mask.dense() == shown.squeeze()).all()
