"""CostModel: which evidence answers for a call, and what is said where none quite does."""

from itertools import chain

import pytest

from longca import masks
from longca.masks import Form
from longca_advice import costs
from longca_advice.costs import CostModel, Key
from longca_advice.fit import Call
from longca_advice.work import work_of

from .rows import RUN, TILE, row

LENGTHS = (2048, 4096, 8192, 16384)


def evidence(**fields):
    """Rows of full and causal masks at some lengths."""
    return [row(pattern=pattern, seqlen=seqlen, **fields) for pattern in ("full", "causal") for seqlen in LENGTHS]


def key(**fields):
    usual = {"device": "Some GPU", "kernel": "plain", "direction": "forward", "dtype": "bfloat16", "head_dim": 128}
    return Key(**{**usual, **fields})


def call(pattern="causal", seqlen=6144, form=Form.ROW_INTERVALS, **factors):
    return Call(work_of(masks.sample(pattern, seqlen, **factors), form), 8, 2)


def expected(asked, times=1.0):
    return times * TILE * asked.heads_q * asked.work.tiles


def test_a_call_within_the_evidence_is_predicted_without_a_word():
    asked = call()
    found = CostModel(evidence()).estimate(key(), asked)
    assert found.seconds == pytest.approx(expected(asked), rel=0.02)
    assert found.low < found.seconds < found.high
    assert (found.records, found.outside, found.versions) == (8, (), ())
    assert found.nearest.startswith("a run plain causal ")


@pytest.mark.parametrize("other", [{"device": "Other"}, {"kernel": "other"}, {"direction": "backward"}])
def test_what_was_not_measured_is_not_predicted(other):
    model = CostModel(evidence())
    assert model.estimate(key(**other), call()) is None


def test_float16_answers_for_bfloat16_and_says_so():
    model = CostModel(evidence(dtype="float16"))
    found = model.estimate(key(), call())
    assert found.outside == ("bfloat16; measured is float16",)
    assert found.seconds == model.estimate(key(dtype="float16"), call()).seconds
    assert model.estimate(key(dtype="float32"), call()) is None


def test_the_nearest_head_dimension_answers_for_one_that_was_not_measured():
    model = CostModel([*evidence(head_dim=64), *evidence(head_dim=128), *evidence(head_dim=192, head_dim_v=128)])
    asked = call()
    known, found = model.estimate(key(), asked), model.estimate(key(head_dim=256), asked)
    assert found.outside == ("head dimension 256; measured is 192:128",)
    assert expected(asked, 1.3) < found.seconds < expected(asked, 1024 / 640), "the exponentials take no longer"
    assert found.high / found.seconds > 1.1 * (known.high / known.seconds)
    assert model.estimate(key(head_dim=48), asked).outside == ("head dimension 48; measured is 64",)
    assert model.estimate(key(head_dim=192, head_dim_v=128), asked).outside == ()
    assert model.estimate(key(head_dim=128, head_dim_v=64), asked).outside == (
        "head dimension 128:64; measured is 128",
    )


def summed(pattern, lengths, tiles, lines, **fields):
    """Rows whose times are a sum over tiles, and over rows of tiles."""
    about = {**fields, "pattern": pattern}
    factors = {name: fields[name] for name in ("window",) if name in fields}
    works = [call(pattern, seqlen, **factors).work for seqlen in lengths]
    each = [8 * TILE * (tiles * work.tiles + lines * work.rows) for work in works]
    return [row(seqlen=seqlen, seconds=seconds, **about) for seqlen, seconds in zip(lengths, each, strict=True)]


WINDOWS = [{"pattern": "causal_sliding_window", "window": window} for window in (128, 512, 2048)]
WHOLE = [{"pattern": "full"}, {"pattern": "causal"}]


def check_windows(model, tiles, lines):
    """Windows with heads of 64 take the time of a sum."""
    for about in WINDOWS:
        (there,) = summed(**about, lengths=(8192,), tiles=tiles, lines=lines, head_dim=64)
        found = model.estimate(Key.of_row(there), call(seqlen=8192, **about))
        assert found.seconds == pytest.approx(there.seconds, rel=0.1), about
        assert found.low < there.seconds < found.high
        assert found.records == 4


@pytest.mark.parametrize(("tiles", "lines"), [(0.62, 5.0), (0.5, 3.5), (2.6, 7.0)])
def test_a_few_calls_at_a_head_dimension_tell_how_its_times_follow_from_another(tiles, lines):
    many = [summed(**about, lengths=LENGTHS, tiles=1, lines=5) for about in WHOLE + WINDOWS]
    few = [summed(**about, lengths=(4096, 16384), tiles=tiles, lines=lines, head_dim=64) for about in WHOLE]
    check_windows(CostModel(chain(*many, *few)), tiles, lines)


def test_calls_with_a_soft_cap_are_predicted_from_others_with_one():
    asked, plain, capped = call(), key(), key(capped=True)
    about = {"lengths": (4096, 16384), "tiles": 2, "lines": 0, "capped": True}
    few = [each for mask in WHOLE for each in summed(**mask, **about)]
    found = CostModel([*evidence(), *few]).estimate(capped, asked)
    assert found.seconds == pytest.approx(expected(asked, 2), rel=0.03)
    assert (found.outside, found.records) == ((), 4)
    assert CostModel([*evidence(), *few]).estimate(plain, asked).seconds == pytest.approx(expected(asked), rel=0.03)
    without = CostModel(evidence()).estimate(capped, asked)
    assert without.outside == ("a soft cap; measured are calls without one",)
    assert without.ranked > 1.2 * expected(asked)
    assert CostModel(few).estimate(plain, asked).outside == ("no soft cap; measured are calls with one",)


def test_calls_at_a_head_dimension_that_no_ratio_explains_are_fitted_by_themselves():
    many = [summed(**about, lengths=LENGTHS, tiles=1, lines=0) for about in WHOLE]
    few = [summed(**about, lengths=(4096, 16384), tiles=0.6, lines=5, head_dim=64) for about in WINDOWS[::2]]
    check_windows(CostModel(chain(*many, *few)), 0.6, 5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (call(seqlen=16384), ()),
        (call(seqlen=20480), ()),  # by a quarter, and no more
        (call(seqlen=32768), ("32768 tokens in tiles of 128; measured up to 16384",)),
        (call(seqlen=1024), ("1024 tokens in tiles of 128; measured from 2048",)),
        (call("causal_sliding_window", 8192, window=256), ("4.6% of the tiles; measured from 50.4%",)),
    ],
    ids=range(5),
)
def test_what_lies_outside_the_evidence_is_said(asked, said):
    assert CostModel(evidence()).estimate(key(), asked).outside == said


def test_each_thing_outside_widens_the_interval():
    model = CostModel([*evidence(), *evidence(dtype="float16", head_dim=64)])
    asked = call()
    inside, outside = model.estimate(key(), asked), model.estimate(key(head_dim=32), asked)
    within = CostModel(evidence(dtype="float16", head_dim=64)).estimate(key(dtype="float16", head_dim=64), asked)
    assert (len(inside.outside), len(within.outside), len(outside.outside)) == (0, 0, 2)
    ratio = within.high / within.seconds
    assert outside.high / outside.seconds > ratio**3
    assert outside.seconds / outside.low == pytest.approx(outside.high / outside.seconds)


def test_blocks_of_a_size_that_was_not_measured_are_between_those_that_were():
    about = {"pattern": "uniform_block_sparse", "form": Form.BLOCK_SPARSE, "kept": 0.5, "heads": 2}
    lengths = [1024 * n for n in range(2, 10)]
    rows = [row(seqlen=seqlen, block=block, **about) for seqlen in lengths for block in (64, 256)]
    model = CostModel([*rows, *evidence()])
    same = call("uniform_block_sparse", 4096, form=Form.BLOCK_SPARSE, block=64, kept=0.5, heads=2)
    assert model.estimate(key(), same).records == 8
    assert model.estimate(key(), same).outside == ()
    between = call("uniform_block_sparse", 4096, form=Form.BLOCK_SPARSE, block=128, kept=0.5, heads=2)
    found = model.estimate(key(), between)
    assert found.records == 16
    assert found.outside == ("blocks of 128 tokens; measured are 64, 256",)
    assert found.ranked == found.high > found.seconds, "it counts as slow as it may be"
    unequal = call("variable_block_sparse", 4096, form=Form.BLOCK_SPARSE, kept=0.5, heads=2)
    assert model.estimate(key(), unequal).outside == ("blocks of unequal sizes; measured are 64, 256",)
    assert model.estimate(key(), same).ranked == model.estimate(key(), same).seconds
    assert found.seconds == pytest.approx(expected(between), rel=0.1)


def test_a_call_that_is_as_quick_as_its_launching_is_outside():
    model = CostModel([row(seqlen=seqlen, seconds=1e-7 * seqlen) for seqlen in range(1024, 20000, 1024)])
    short = model.estimate(key(), call("full", 2048))
    assert short.outside == ("under 0.5 ms a call takes as long as the host takes to launch it",)
    assert short.ranked == short.seconds, "launches take as long for each kernel"
    assert model.estimate(key(), call("full", 16384)).outside == ()


def test_versions_that_differ_here_are_named(monkeypatch):
    measured = {"torch": "2.0+cu1", "triton": "3.0", "numpy": "1.0", "flash-attn": "2.8"}
    here = {"torch": "2.1+cpu", "triton": "3.0+x", "numpy": "2.0", "flash-attn": None}
    monkeypatch.setattr(costs, "installed_version", here.get)
    model = CostModel(evidence(run=RUN.model_copy(update={"packages": measured})))
    assert model.estimate(key(), call()).versions == ("measured with torch 2.0+cu1; 2.1+cpu is installed",)
