"""Pairs in training: which pair is the fastest, what it gains, and which times are combined."""

import pytest

from longca.manifests import Backward
from longca.plugins import registry
from longca_bench.reports import training
from longca_bench.reports.markdown import markdown_of, page_of
from longca_bench.reports.views import tables
from longca_bench.reports.winners import winners

from .runs import cells, record, rows_of

#: Milliseconds of each kernel's forward and backward.
TIMES = {"naive": (3.0, 4.0), "sdpa": (1.0, 7.0)}


def calls(times=TIMES, **fields):
    """Records of kernels in both directions. A pair has a backward alone."""
    about = {"form": "causal", **fields}
    return [
        record(kernel, direction=direction, time=each / 1e3, **about)
        for kernel, both in times.items()
        for direction, each in zip(("forward", "backward"), both, strict=True)
        if each is not None
    ]


def shown(*runs):
    return markdown_of(tables("best-pair", rows_of(*runs)))


@pytest.fixture
def offers(monkeypatch):
    """Changes the offers of the core's kernels: `offers("naive", backward=…)`."""
    kernels = dict(registry().kernels)
    monkeypatch.setattr(registry(), "kernels", kernels)
    training._composes.cache_clear()

    causal = kernels["sdpa"].offers[1]

    def change(name, **fields):
        offer = causal.model_copy(update=fields)
        kernels[name] = kernels[name].model_copy(update={"offers": (offer,)})

    for name in TIMES:
        change(name)
    yield change
    training._composes.cache_clear()


def test_a_pair_that_was_not_measured_is_combined_and_says_so(offers):
    text = shown(calls())
    assert "### training, 1 K tokens, 4:2 heads of 32" in text
    assert cells(text, "mask") == ["draws", "single", "TFLOP/s", "pair", "TFLOP/s", "gain"]
    single, pair = (2 * 1024**2 * 100 / seconds / 1e12 for seconds in (7e-3, 5e-3))
    assert cells(text, "`causal`") == ["1", "`naive`", f"{single:.4f}", "`sdpa+naive*`", f"{pair:.4f}", "40.0%"]
    assert "\\* This pair was not measured as one. Its time is combined: the medians of its first kernel's" in text


def test_a_measured_pair_has_its_own_time(offers):
    text = shown(calls({**TIMES, "sdpa+naive": (None, 4.6)}))
    assert cells(text, "`causal`")[3:] == ["`sdpa+naive`", "0.0374", "25.0%"]
    assert "combined" not in text
    assert "## Pairs" in page_of(rows_of(calls({**TIMES, "sdpa+naive": (None, 4.6)})))
    assert "## Pairs" not in page_of(rows_of(calls()))


@pytest.mark.parametrize("status", ["wrong", "error", "unsupported"])
def test_a_pair_that_failed_is_not_combined(offers, status):
    failed = record("sdpa+naive", direction="backward", form="causal", status=status)
    assert cells(shown([*calls(), failed]), "`causal`")[3] == "`naive+sdpa*`"


@pytest.mark.parametrize(
    ("kernel", "fields"),
    [("sdpa", {"rough_lse": True}), ("naive", {"backward": Backward.OWN}), ("naive", {"backward": Backward.LSE_GRAD})],
)
def test_only_kernels_that_compose_are_combined(offers, kernel, fields):
    offers(kernel, **fields)
    assert cells(shown(calls()), "`causal`")[3] == "`naive+sdpa*`"


def test_halves_of_two_runs_or_draws_are_no_pair(offers):
    forward, backward = calls({"sdpa": (1.0, None)}), calls({"naive": (None, 4.0)})
    assert shown(forward, backward) == ""
    other = [each.model_copy(update={"mask_digest": "f" * 16}) for each in backward]
    assert shown([*forward, *other]) == ""
    assert shown(calls(strategy="ring_p2p", placement="auto", world_size=2)) == ""


@pytest.mark.parametrize(("count", "heads"), [(3, ["`k0+naive`", "`k1+naive`", "`k2+naive`"]), (4, ["`+naive`"])])
def test_many_pairs_share_columns(count, heads):
    rows = rows_of(calls({f"k{n}+naive": (None, 4.0) for n in range(count)}))
    text = markdown_of(tables("results", rows))
    assert [head for head in cells(text, "mask")[3:] if head != "fastest"] == heads
    assert ("+ stands before the backward" in text) == (count > 3)


def test_a_pair_without_a_forward_is_no_winner_beside_kernels_with_one():
    pair = {"sdpa+naive": (None, 1.0)}
    assert winners(rows_of([*calls(), *calls(pair)])) == winners(rows_of(calls()))
    assert winners(rows_of(calls({**pair, "naive": (None, 4.0)})))[0].fastest == ("sdpa+naive",)
