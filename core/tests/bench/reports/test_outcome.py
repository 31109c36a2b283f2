"""The terminal's view of outcomes: predicted beside measured, and one sentence on the fastest."""

from io import StringIO

import pytest
from rich.console import Console

from longca_bench.measuring.outcome import MeasuredChoice, Outcome, Timed
from longca_bench.reports.outcome import print_outcomes

PROBLEM = {"text": "causal of 3,000 tokens"}


def timed(predicted=None, measured=None, status="ok"):
    interval = {} if predicted is None else {"low": 0.9 * predicted, "high": 1.1 * predicted}
    return Timed(predicted=predicted, measured=measured, status=status, **interval)


def way(kernel, predicted, measured, status="ok"):
    forward = timed(predicted, measured, status)
    return MeasuredChoice(
        kernel=kernel, times={"forward": forward, "total": timed(predicted, measured, None)}, notes=("rests",)
    )


def printed(*ways, ranked=True, **said):
    out = StringIO()
    about = {"problem": PROBLEM, "device": "a device", "ranks": 1, "asked": 3, "ranked": ranked, **said}
    print_outcomes(Console(file=out, width=120), [Outcome(ways=ways, **about)])
    return out.getvalue()


def test_predicted_beside_measured():
    text = printed(way("fa3", 2e-3, 2.5e-3), way("fa4", 3e-3, 3e-3))
    assert "\ncausal of 3,000 tokens\n\npredicted and measured\n" in text
    (line,) = [line for line in text.splitlines() if line.strip().startswith("fa3 ")]
    assert " ".join(line.split()) == "fa3 forward 2 ms 1.8 ms to 2.2 ms 2.5 ms -20.0 % no"
    assert "total" not in text, "one direction is its own total"


def test_both_directions_have_their_total():
    times = {"forward": timed(1e-3, 1e-3), "backward": timed(2e-3, 2e-3), "total": timed(3e-3, 3e-3, None)}
    lines = printed(MeasuredChoice(kernel="fa3", times=times)).splitlines()
    assert sum("yes" in line for line in lines) == 3
    assert sum("fa3" in line for line in lines if "yes" in line) == 1


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ([way("a", 1e-3, 1e-3), way("b", 2e-3, 2e-3)], "The recommended a was fastest as measured: 1 ms. Its regret"),
        (
            [way("a", 1e-3, 3e-3), way("b", 2e-3, 2e-3)],
            "b was fastest as measured: 2 ms. The recommended a took 50.0 %",
        ),
        ([way("a", 1e-3, None, "oom"), way("b", 2e-3, 2e-3)], "2 ms. The recommended a has no measured time."),
        ([way("a", 1e-3, None, "oom")], "oom"),
        ([way("a", 1e-3, None, "oom")], "No choice has a measured time for every direction."),
    ],
)
def test_one_sentence_says_what_following_it_costs(ways, said):
    assert said in printed(*ways)


def test_a_busy_machine_names_no_fastest_choice():
    ways = [way("a", 1e-3, 1e-3), way("b", 2e-3, 2e-3)]
    ways[1].times["total"] = ways[1].times["forward"] = timed(2e-3, 2e-3).model_copy(update={"busy": True})
    text = printed(*ways)
    assert "2 ms~" in text
    assert "The machine was busy, so no choice is named the fastest." in text


def test_before_measuring_nothing_is_compared():
    text = printed(way("a", 1e-3, None, None))
    assert "1 ms" in text
    assert not any(word in text for word in ("measured", "error", "fastest"))
