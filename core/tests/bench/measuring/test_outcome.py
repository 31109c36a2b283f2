"""What was predicted, held against what was measured: errors, intervals, the fastest choice and its regret."""

import json

import pytest

from longca_advice.choices import Choice, Proof, Seconds, Unmeasured
from longca_bench.measuring.outcome import MeasuredChoice, Outcome, Timed

from ..reports.runs import record

PROOF = Proof(12, "a run 0123", outside=("9 tokens; measured from 1024",), notes=("it is a fake",))


def choice(kernel, forward, backward=None, intervals=(), **fields):
    total = forward + (backward or 0.0)
    seconds = Seconds(forward, backward, total, total * 0.9, total * 1.1, intervals)
    forward_kernel, _, backward_kernel = kernel.partition("+")
    return Choice(forward_kernel, backward_kernel or None, seconds, 0, True, PROOF, "", 1.0, **fields)


def outcome(*ways, ranked=True):
    return Outcome(problem={}, device="a device", ranks=1, asked=3, ranked=ranked, ways=ways)


def way(kernel, forward=1.0, backward=2.0):
    predicted = MeasuredChoice.of_choice(choice(kernel, forward, backward))
    cases = {name: f"{kernel}-{name}" for name in ("forward", "backward")}
    times = {name: time.model_copy(update={"case": cases.get(name)}) for name, time in predicted.times.items()}
    return predicted.model_copy(update={"times": times})


def records(**seconds):
    found = {}
    for kernel, times in seconds.items():
        for name, time in zip(("forward", "backward"), times, strict=True):
            status = "oom" if time is None else "ok"
            found[f"{kernel}-{name}"] = record(kernel, status=status, time=time or 1.0, direction=name)
    return found


@pytest.mark.parametrize(
    ("predicted", "measured", "error", "inside"),
    [(1.0, 0.8, 0.25, False), (1.0, 1.0, 0.0, True), (1.0, 1.25, -0.2, False), (1.0, None, None, None)],
)
def test_an_error_is_a_share_of_the_measured_time(predicted, measured, error, inside):
    time = Timed(predicted=predicted, low=0.9, high=1.1, measured=measured)
    assert time.inside is inside
    assert time.model_dump()["error"] == time.error == (None if error is None else pytest.approx(error))


def test_a_choice_has_the_intervals_that_are_known():
    both = MeasuredChoice.of_choice(choice("a+b", 1.0, 2.0, intervals=((0.5, 1.5), (1.5, 2.5))))
    assert (both.kernel, list(both.times)) == ("a+b", ["forward", "backward", "total"])
    assert (both.times["backward"].low, both.times["backward"].high) == (1.5, 2.5)
    assert both.times["total"].predicted == 3.0
    assert MeasuredChoice.of_choice(choice("a", 1.0, 2.0)).times["forward"].low is None
    alone = MeasuredChoice.of_choice(choice("a", 1.0))
    assert alone.times["forward"] == alone.times["total"] == Timed(predicted=1.0, low=0.9, high=1.1)
    assert "12 measured calls" in alone.notes[0]
    assert alone.notes[1:] == ("outside the evidence: 9 tokens; measured from 1024", "it is a fake")


def test_titles_name_what_ranks_share():
    assert MeasuredChoice(kernel="a").title == "a"
    assert MeasuredChoice(kernel="a", strategy="ring").title == "a with ring"
    shared = choice("a", 1.0, strategy="usp", mesh="ring=2,ulysses=2", placement="zigzag")
    assert MeasuredChoice.of_choice(shared).title == shared.title == "a with usp (ring=2,ulysses=2, zigzag)"


def test_regret_is_of_the_first_choice():
    found = outcome(way("a"), way("b")).with_records(records(a=(1.0, 2.0), b=(1.0, 1.0)))
    assert found.fastest.kernel == "b"
    assert found.regret == pytest.approx(0.5, rel=0.02)
    assert outcome(way("a"), way("b")).with_records(records(a=(1.0, 1.0), b=(1.0, 2.0))).regret == 0


def test_a_choice_that_fails_has_its_status_and_no_total():
    found = outcome(way("a"), way("b")).with_records(records(a=(1.0, None), b=(1.0, 1.0)))
    times = found.ways[0].times
    assert (times["backward"].status, times["backward"].measured, times["total"].measured) == ("oom", None, None)
    assert times["forward"].measured == pytest.approx(1.0, rel=0.02)
    assert (found.fastest.kernel, found.regret) == ("b", None)


def test_what_nothing_ranks_has_no_regret():
    ways = [MeasuredChoice.of_unmeasured(Unmeasured(name, "no evidence"), ("forward",)) for name in ("a", "b")]
    ways = [w.model_copy(update={"times": {**w.times, "forward": Timed(case=f"{w.kernel}-forward")}}) for w in ways]
    found = outcome(*ways, ranked=False).with_records(records(a=(2.0, 1.0), b=(1.0, 1.0)))
    assert (found.fastest.kernel, found.regret) == ("b", None)
    assert outcome(*ways, ranked=False).fastest is None


def test_outcomes_come_back_from_their_json():
    found = outcome(way("a"), way("b")).with_records(records(a=(1.0, None), b=(1.0, 1.0)))
    said = json.loads(json.dumps(found.model_dump(mode="json")))
    assert Outcome.model_validate(said) == found
    assert (said["fastest"], said["regret"], said["ways"][1]["title"]) == ("b", None, "b")
