"""Streams of masks: what they draw, and the suites that ask for them."""

import numpy as np
import pytest

from longca.errors import RequestError
from longca.masks import Mask
from longca_bench.suites.case import Case
from longca_bench.suites.cases import Selection, expand
from longca_bench.suites.streams import Stream, cold, masks_of
from longca_bench.suites.suite import load_suite

SWEEP = """
name = "stream"
version = 1
[[sweep]]
patterns = ["causal_document"]
kernels = ["sdpa"]
seqlens = [512]
heads = ["4:2"]
head_dims = [32]
dtypes = ["float32"]
"""


def case(pattern, masks=6, seed=0, **factors):
    return Case(
        "sdpa", pattern, 4096, "mix", seed, 4, 2, 32, "float32", "backward", tuple(sorted(factors.items())),
        stream=Stream(masks, 2),
    )  # fmt: skip


def suite(tmp_path, *lines):
    path = tmp_path / "stream.toml"
    path.write_text("\n".join([SWEEP, *lines]), "utf-8")
    return load_suite(str(path))


def test_each_step_has_documents_of_its_own_and_the_first_is_the_cases():
    drawn = masks_of(case("causal_document"))
    assert drawn[0] == case("causal_document").mask
    assert len({mask.digest for mask in drawn}) == 6
    assert [mask.digest for mask in masks_of(case("causal_document"))] == [mask.digest for mask in drawn]
    other = masks_of(case("causal_document", seed=1))
    assert not {mask.digest for mask in drawn} & {mask.digest for mask in other}


def test_kept_blocks_drift():
    drawn = masks_of(case("uniform_block_sparse", masks=40, block=64, kept=0.25))
    kept = [np.stack([mask.kept(head) for head in range(2)]) for mask in drawn]
    assert {tuple(np.unique(each.sum(-1))) for each in kept} == {(16,)}
    next_to, far = (np.mean([(a & b).sum() / a.sum() for a, b in zip(kept, kept[by:], strict=False)]) for by in (1, 30))
    assert 0.6 < next_to < 0.95, "most blocks stay"
    assert far < 0.35, "none stays for ever, and a quarter is kept by chance"


@pytest.mark.parametrize("pattern", ["causal_document", "uniform_block_sparse", "variable_block_sparse"])
def test_a_cold_mask_is_equal_and_has_nothing_worked_out(pattern):
    factors = {"kept": 0.3} if "sparse" in pattern else {}
    if pattern == "uniform_block_sparse":
        factors["block"] = 64
    mask = case(pattern, **factors).mask
    assert mask.area > 0
    made = cold(mask)
    assert made == mask
    assert made.key != mask.key
    assert set(vars(cold(mask))) <= set(vars(mask))
    assert "area" not in vars(cold(mask))


def test_a_sweep_of_streams_has_a_case_for_both_directions(tmp_path):
    made = suite(tmp_path, "stream = 5", "layers = 3")
    (only,) = expand(made, ["sdpa"])
    assert (only.stream, only.direction) == (Stream(5, 3), "backward")
    (alone,) = expand(suite(tmp_path), ["sdpa"], Selection(directions=("backward",)))
    assert alone.stream is None
    assert alone.digest("cpu") != only.digest("cpu")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["layers = 2"], "give stream too"),
        (["stream = 2", 'directions = ["forward"]'], "leave out pairs and directions"),
        (["stream = 2", "pairs = true"], "leave out pairs and directions"),
        (["stream = -1"], "stream"),
    ],
)
def test_a_stream_that_makes_no_sense_is_refused(tmp_path, lines, says):
    with pytest.raises(RequestError, match=says):
        suite(tmp_path, *lines)


def test_the_suite_takes_strategies_and_one_device():
    dynamic = load_suite("dynamic")
    assert all(sweep.stream == 50 for sweep in dynamic.sweep)
    kernels = [*dynamic.distributions, "sdpa"]
    assert {case.stream.masks for case in expand(dynamic, kernels)} == {50}
    assert all(isinstance(mask, Mask) for mask in masks_of(case("full_document", masks=2)))
