"""The plugin as LongCA sees it: the problems that it takes, and the reasons against others."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import longca
import longca_flex
from longca.masks import BlockSparseMask, Slice, SliceMask

H200 = longca.Device("cuda", (9, 0))
A100 = longca.Device("cuda", (8, 0))


def codes(mask, device=H200, **asked):
    problem = longca.Problem(mask=mask, heads_q=8, heads_kv=2, device=device, direction="backward", **asked)
    return [reason.code for reason in longca.resolve("flex", problem).reasons]


def test_it_takes_every_pattern():
    for pattern in longca.masks.PATTERNS.values():
        assert codes(pattern) == [], pattern


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "valid"),
    [
        (H200, "bfloat16", 128, True),
        (H200, "float16", 16, True),
        (H200, "bfloat16", 144, False),
        (H200, "float32", 64, False),
        (A100, "bfloat16", 128, False),
    ],
)
@pytest.mark.parametrize("heads", [2, 8])
@pytest.mark.parametrize("block", [64, 128])
def test_block_sparse_masks(device, dtype, head_dim, valid, heads, block):
    mask = longca.masks.build("uniform_block_sparse", 1000, block=block, kept=0.5, heads=heads, seed=0)
    refusals = codes(mask, device, dtype=dtype, head_dim=head_dim)
    assert (refusals == []) == valid, refusals


def test_lists_beyond_32_bits_are_refused():
    seqlen = 2**19
    for heads, expected in ((1, []), (8, []), (64, ["lengths"])):
        kept = np.zeros((heads, seqlen // 64, seqlen // 64), np.bool_)
        mask = BlockSparseMask(kept, range(0, seqlen + 1, 64), range(0, seqlen + 1, 64))
        problem = longca.Problem(mask=mask, heads_q=heads, device=H200)
        verdict = longca_flex.supports_mask("flex", problem)
        assert ([] if verdict is None else [reason.code for reason in verdict.reasons]) == expected


@pytest.mark.parametrize(("count", "expected"), [(8, []), (9, ["form"])])
def test_intervals_a_row(count, expected):
    mask = SliceMask([Slice(0, 32, 2 * i, 2 * i + 1) for i in range(count)], 32, 32)
    assert codes(mask) == expected


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "valid"),
    [
        (A100, "bfloat16", 16, True),
        (A100, "bfloat16", 112, True),
        (A100, "float16", 128, True),
        (A100, "bfloat16", 192, False),
        (H200, "bfloat16", 192, True),
        (A100, "bfloat16", 256, False),
        (H200, "bfloat16", 256, True),
        (H200, "bfloat16", 72, False),
        (A100, "float32", 64, True),
        (A100, "float32", 128, False),
        (H200, "float32", 128, True),
        (longca.Device("cuda", (12, 0)), "float32", 128, False),
        (H200, "float32", 192, False),
        (H200, "float64", 64, False),
        (longca.Device("cuda", (7, 5)), "float16", 64, False),
        (longca.Device("cpu"), "float32", 64, False),
    ],
)
def test_devices_dtypes_and_head_dimensions(device, dtype, head_dim, valid):
    asked = {"device": device, "dtype": dtype, "head_dim": head_dim}
    refusals = codes(longca.masks.build("causal", 256), **asked, allow_unverified=True)
    assert (refusals == []) == valid, refusals
    if valid:
        assert codes(longca.masks.build("causal", 256), **asked) == ([] if device is H200 else ["unverified"])


def test_more_queries_than_keys_and_fewer():
    for lengths in ((300, 200), (200, 300)):
        assert codes(SliceMask([Slice(0, lengths[0], 0, lengths[1])], *lengths)) == []


def test_the_entry_point_is_the_package():
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["project"]["entry-points"]["longca"] == {"flex": longca_flex.__name__}
