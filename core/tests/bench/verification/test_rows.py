"""A timed call is checked on rows of all heads, for completeness, and by checksums of heads without a reference."""

import random

import pytest
import torch

from longca.masks import build
from longca_bench.verification.change import Change
from longca_bench.verification.findings import check_values
from longca_bench.verification.rows import Checksums, at_tokens, drawn_tokens
from longca_builtin.naive import Naive


@pytest.fixture
def right(setup):
    made = setup(mask=build("causal", 600))
    x, plan = made.inputs, Naive().plan(made.problem)
    out, lse = Naive().forward(x.q, x.k, x.v, plan)
    dq, dk, dv = Naive().backward(x.dout, x.q, x.k, x.v, out, lse, plan)
    return made, {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


def found(made, results, seed=0):
    """The failures at tokens that are drawn, with their tokens among all."""
    failures, source = [], random.Random(seed)
    for name, result in results.items():
        tokens = drawn_tokens(600, source)
        part = result.index_select(int(name == "lse"), tokens)
        wrong = check_values({name: part}, at_tokens(made.expected, name, tokens)).failures
        failures += [(name, int(tokens[failure.token])) for failure in wrong]
    return failures


def test_right_results_pass(right):
    made, results = right
    assert found(made, results) == []


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
def test_wrong_rows_are_found_where_they_are(right, name):
    made, results = right
    part = results[name][:, 300:] if name == "lse" else results[name][300:]
    part *= 1.01
    ((tensor, token),) = found(made, results)
    assert tensor == name
    assert token >= 300


def test_heads_without_a_reference_are_held_by_checksums(right):
    made, results = right
    sums = Checksums(torch.float32, rough_lse=False)
    for name, result in results.items():
        sums.keep(name, result)
    none = Change.none(made.problem)
    change = Change.draw(made.problem, none)
    changed = {name: change.made(name, result) for name, result in results.items()}
    assert sums.check(results, none) == []
    assert sums.check(changed, change) == []
    changed["dk"][5, 1] *= 1.01
    (finding,) = sums.check(changed, change)
    assert finding.tensor == "dk"
    assert finding.note == "token 5, head 1 is not as it was when it was verified"


@pytest.mark.parametrize("value", [1e-2, -1e-2, torch.nan, torch.inf, -torch.inf])
def test_an_lse_of_a_head_without_a_reference_stays_as_it_was(right, value):
    made, results = right
    lse = results["lse"].clone()
    lse[:, 9] = -torch.inf  # a query that sees nothing
    change = Change.draw(made.problem, Change.none(made.problem))
    for rough in (False, True):
        sums = Checksums(torch.bfloat16 if rough else torch.float32, rough_lse=rough)
        sums.keep("lse", lse)
        now = change.made("lse", lse)
        assert sums.check({"lse": now + 1e-6}, change) == []
        now[2, 5] += value
        (finding,) = sums.check({"lse": now}, change)
        assert str(finding) == "lse: token 5, head 2 is not as it was when it was verified"
        now[2, 5], now[3, 9] = change.made("lse", lse)[2, 5], 0.0
        (finding,) = sums.check({"lse": now}, change)
        assert str(finding) == "lse: token 9, head 3 is not as it was when it was verified"


def test_an_lse_that_was_not_given_needs_no_checksum(right):
    made, results = right
    sums, none = Checksums(torch.float32, rough_lse=False), torch.full_like(results["lse"], torch.nan)
    sums.keep("lse", none)
    assert sums.check({"lse": none}, Change.none(made.problem)) == []
