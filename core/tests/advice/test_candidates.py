"""Ranking kernels on one device, by evidence of kernels whose times are made up."""

import pytest

from longca import masks
from longca.manifests import Device, Problem
from longca_advice.candidates import rank_kernels
from longca_advice.costs import CostModel
from longca_advice.evidence import Run
from longca_advice.request import Request

from ..core_alone import core  # noqa: F401  # a fixture
from .rows import row

CPU = Device("cpu", None, 2**40, "Some CPU")
RUN = Run(run="a run", device="Some CPU", memory=2**40)
KERNELS = ("naive", "sdpa")


@pytest.fixture
def rank(core):  # noqa: F811
    """The ranking of a causal mask by kernels that take so many times what they are expected to, in each direction."""

    def ranked(forward, backward, *, training=True, kernels=KERNELS):
        rows = [
            row(kernel, "causal", length, direction, run=RUN, dtype="float32", form=form, seconds=times * length**2)
            for direction, taken in (("forward", forward), ("backward", backward))
            for kernel, times in taken.items()
            for form in ("row_intervals", "causal", "dense")
            for length in (1024, 2048, 4096)
        ]
        problem = Problem(mask=masks.build("causal", 2048), heads_q=8, heads_kv=2, dtype="float32", device=CPU)
        return rank_kernels(Request(problem, training, core, CostModel(rows), None, kernels))

    return ranked


def seconds(ranking):
    return {choice.kernel: choice.seconds for choice in ranking.choices}


def test_kernels_alone_take_both_directions(rank):
    found = seconds(rank({"naive": 1e-8, "sdpa": 3e-8}, {"naive": 2e-8, "sdpa": 6e-8}))
    assert set(found) == {"naive", "sdpa"}
    assert found["naive"].forward == pytest.approx(1e-8 * 2048**2, rel=0.1)
    assert found["naive"].backward == pytest.approx(2e-8 * 2048**2, rel=0.1)
    for one in found.values():
        assert one.total == pytest.approx(one.forward + one.backward)


def test_a_pair_is_listed_where_it_is_quicker_than_each_of_its_kernels(rank):
    found = rank({"naive": 1e-8, "sdpa": 3e-8}, {"naive": 6e-8, "sdpa": 2e-8})
    assert set(seconds(found)) == {"naive", "sdpa", "naive+sdpa"}
    pair = next(choice for choice in found.choices if choice.kernel == "naive+sdpa")
    assert (pair.forward, pair.backward) == ("naive", "sdpa")
    alone = seconds(found)
    assert pair.seconds.forward == alone["naive"].forward
    assert pair.seconds.backward == alone["sdpa"].backward


def test_a_pair_that_gains_less_than_runs_differ_is_not_listed(rank):
    found = seconds(rank({"naive": 1e-8, "sdpa": 1.01e-8}, {"naive": 2e-8, "sdpa": 1.99e-8}))
    assert found["naive"].forward + found["sdpa"].backward < min(each.total for each in found.values())
    assert set(found) == {"naive", "sdpa"}


def test_a_kernel_that_was_measured_in_one_direction_is_chosen_in_a_pair_alone(rank):
    found = rank({"naive": 1e-8, "sdpa": 3e-8}, {"sdpa": 2e-8})
    assert set(seconds(found)) == {"sdpa", "naive+sdpa"}
    assert {one.kernel for one in found.unmeasured} == {"naive"}


@pytest.mark.parametrize(("times", "first"), [(0.95, "sdpa"), (0.1, "naive")])
def test_what_goes_beyond_the_measurements_comes_first_only_if_it_gains_more_than_it_may_err(core, times, first):  # noqa: F811
    rows = [
        row(kernel, "causal", length, "forward", run=RUN, form=form, head_dim=head_dim, dtype="float32",
            seconds=gain * 1e-8 * head_dim * length**2)
        for kernel, head_dim, gain in (("sdpa", 128, 1), ("naive", 64, times))
        for form in ("row_intervals", "causal", "dense")
        for length in (1024, 2048, 4096)
    ]  # fmt: skip
    problem = Problem(mask=masks.build("causal", 2048), heads_q=8, heads_kv=2, dtype="float32", device=CPU)
    found = rank_kernels(Request(problem, False, core, CostModel(rows), None, KERNELS))
    about = {choice.kernel: choice for choice in found.choices}
    assert about["naive"].seconds.total < about["sdpa"].seconds.total
    assert about["naive"].proof.extrapolates
    assert not about["sdpa"].proof.extrapolates
    assert found.choices[0].kernel == first
    assert (about["naive"].seconds.high < about["sdpa"].seconds.total) == (first == "naive")


def test_a_choice_that_nobody_verified_is_marked_and_its_line_allows_it(core, monkeypatch):  # noqa: F811
    new = Device("cuda", (10, 0), 2**40, "New GPU")
    run = Run(run="a run", device="New GPU", capability=(10, 0), memory=2**40)
    offers = tuple(
        offer.model_copy(update={"verified_on": "==9.0", "expected_on": ">=10.0"})
        for offer in core.manifest("naive").offers
    )
    monkeypatch.setitem(core.kernels, "naive", core.manifest("naive").model_copy(update={"offers": offers}))
    rows = [row(kernel, "causal", 2048, run=run, dtype="float32", form=form, seconds=1e-3)
            for kernel in KERNELS for form in ("row_intervals", "causal")]  # fmt: skip
    about = {"mask": masks.build("causal", 2048), "heads_q": 8, "heads_kv": 2, "dtype": "float32", "device": new}
    for allowed in (False, True):
        asked = Request(Problem(**about, allow_unverified=allowed), False, core, CostModel(rows), None, KERNELS)
        found = {choice.kernel: choice for choice in rank_kernels(asked).choices}
        assert set(found) == ({"naive", "sdpa"} if allowed else {"sdpa"})
        assert not found["sdpa"].unverified
    assert found["naive"].unverified
    assert found["naive"].call == "longca.attention(q, k, v, mask, kernel='naive', allow_unverified=True)"
    assert found["sdpa"].call == "longca.attention(q, k, v, mask, kernel='sdpa')"
