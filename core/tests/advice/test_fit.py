"""Fits: what measured calls of one kernel say of its other calls."""

import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from longca import masks
from longca.masks import Form
from longca_advice.fit import Call, Fit
from longca_advice.work import work_of

#: Seconds of a tile, of a row of tiles and of a call, of a kernel that is a plain sum.
TILE, ROW, CALL = 1e-6, 3e-6, 2e-5


def seconds(call):
    """What the plain kernel takes."""
    return call.heads_q * (TILE * call.work.tiles + ROW * call.work.rows) + CALL


@cache
def banded(pattern, seqlen, window=None, documents=None):
    given = {"window": window, "documents": documents}
    factors = {name: value for name, value in given.items() if value is not None}
    return work_of(masks.build(pattern, seqlen, **factors), Form.ROW_INTERVALS)


def measured():
    """Calls of several patterns, lengths and heads."""
    calls = []
    for seqlen in (1024, 2048, 4096, 8192, 16384):
        works = [
            banded("full", seqlen),
            banded("causal", seqlen),
            banded("causal_sliding_window", seqlen, window=1000),
            banded("causal_document", seqlen, documents=(seqlen // 4,) * 4),
        ]
        calls += [Call(work, *heads) for work in works for heads in ((8, 8), (32, 4))]
    return calls


def test_a_kernel_that_packs_the_heads_of_a_group_is_learnt_apart_without_groups():
    """With blocks of 64, two heads of a group fill a tile of 128 rows. A head without a group fills half of it."""
    calls, taken = [], []
    for seqlen, heads_kv in product((8192, 16384, 32768), (8, 64)):
        for kept in (0.1, 0.3, 0.5):
            mask = masks.build("uniform_block_sparse", seqlen, block=64, kept=kept)
            call = Call(work_of(mask, Form.BLOCK_SPARSE), 64, heads_kv)
            calls.append(call)
            taken.append(seconds(call) * (2 if heads_kv == 64 else 1))
    for index, (call, took) in enumerate(zip(calls, taken, strict=True)):
        fit = Fit(calls[:index] + calls[index + 1 :], taken[:index] + taken[index + 1 :])
        assert fit.predict([call])[0].seconds == pytest.approx(took, rel=0.1)


def test_a_plain_sum_is_found_and_told_of_lengths_and_heads_that_were_not_measured():
    calls = measured()
    fit = Fit(calls, [seconds(call) for call in calls])
    new = [Call(banded("causal", 32768), 32, 4), Call(banded("full", 65536), 8, 8), Call(banded("full", 512), 16, 2)]
    for call, found in zip(new, fit.predict(new), strict=True):
        assert found.seconds == pytest.approx(seconds(call), rel=0.01)
        assert found.low < found.seconds < found.high


def test_measured_calls_are_predicted_as_they_were_measured():
    calls = measured()
    taken = [seconds(call) for call in calls]
    found = [one.seconds for one in Fit(calls, taken).predict(calls)]
    assert found == pytest.approx(taken, rel=0.005)


@pytest.mark.parametrize("odd", range(0, 40, 7))
@pytest.mark.parametrize("factor", [0.3, 5.0])
def test_an_odd_record_hardly_bends_the_sum(odd, factor):
    calls = measured()
    true = [seconds(call) for call in calls]
    fit = Fit(calls, [taken * factor if index == odd else taken for index, taken in enumerate(true)])
    found = np.array([one.seconds for one in fit.predict(calls)]) / true - 1
    others = np.delete(np.abs(found), odd)
    assert np.median(others) < 0.02
    assert others.max() < 0.1
    far = Call(banded("full", 2**18), 1, 1)  # nothing alike was measured: no correction, the sum alone
    assert fit.predict([far])[0].seconds == pytest.approx(seconds(far), rel=0.1)


@pytest.mark.parametrize("times", [0.2, 6.0])
def test_a_path_of_other_code_moves_no_other_path(times):
    calls = measured()
    taken = [seconds(call) for call in calls]
    others = [call._replace(work=replace(call.work, path="slow")) for call in calls[::5]]
    alone = Fit(calls, taken)
    both = Fit([*calls, *others], [*taken, *(times * seconds(call) for call in others)])
    new = [Call(banded("causal", 12288), 32, 4), Call(banded("full", 3072), 8, 8)]
    for one, two in zip(alone.predict(new), both.predict(new), strict=True):
        assert two.seconds == pytest.approx(one.seconds, rel=1e-6)
    slow = [call._replace(work=replace(call.work, path="slow")) for call in new]
    for call, found in zip(slow, both.predict(slow), strict=True):
        assert found.seconds == pytest.approx(times * seconds(call), rel=0.1)


def test_intervals_hold_most_calls_that_were_left_out_and_say_something():
    noise = np.random.default_rng(7)
    calls = measured()
    taken = [seconds(call) * math.exp(noise.normal(0, 0.03)) for call in calls]
    within, widths = [], []
    for index, call in enumerate(calls):
        rest = [other for other in range(len(calls)) if other != index]
        (found,) = Fit([calls[i] for i in rest], [taken[i] for i in rest]).predict([call])
        within.append(found.low <= taken[index] <= found.high)
        widths.append(found.high / found.low)
    assert np.mean(within) >= 0.85
    assert np.median(widths) < 1.25


def test_the_nearest_call_is_of_the_same_path_and_size():
    calls = measured()
    taken = [seconds(call) for call in calls]
    fit = Fit(calls, taken)
    assert [fit.nearest(call) for call in calls] == [calls.index(call) for call in calls]
    other = Call(banded("causal", 7000), 32, 4)
    assert calls[fit.nearest(other)] == Call(banded("causal", 8192), 32, 4)
