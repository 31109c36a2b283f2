"""A recommendation in a terminal, of choices made by hand."""

import io
from dataclasses import replace

from rich.console import Console

from longca.plain_text import time_text
from longca_advice.choices import Choice, Proof, Recommendation, Refused, Seconds, Unmeasured
from longca_bench.reports.recommendation import print_recommendation, print_why

PROBLEM = {"text": "causal of 8 tokens", "memory": 80 * 2**30}


def choice(kernel, total, fits=True, **fields):
    """A choice of a kernel or a pair, whose interval is a tenth to either side."""
    forward, _, backward = kernel.partition("+")
    usual = {
        "seconds": Seconds(0.25 * total, 0.75 * total, total, 0.9 * total, 1.1 * total),
        "bytes_per_rank": 2**31,
        "proof": Proof(7, "a run abc"),
        "call": f"longca.attention(q, k, v, mask, kernel={kernel!r})",
        "tflops": 500.0,
    }
    return Choice(forward=forward, backward=backward or forward, fits=fits, **{**usual, **fields})


def answer(*choices, **fields):
    return Recommendation(**{"problem": PROBLEM, "device": "Some GPU", "ranks": 1, "choices": choices, **fields})


def shown(found, *, width=100, everything=False, why=None, strategies=()):
    console = Console(file=io.StringIO(), width=width, highlight=False, emoji=False)
    if why is None:
        print_recommendation(console, found, everything=everything)
    else:
        print_why(console, found, why, strategies)
    question, _, said = console.file.getvalue().partition("\n\n")
    assert question == PROBLEM["text"]
    return said


def test_times_have_three_digits():
    texts = {12.345: "12.3 s", 1.0: "1 s", 0.99949: "999 ms", 0.00025: "250 µs", 2.5e-7: "0.25 µs"}
    assert {seconds: time_text(seconds) for seconds in texts} == texts


def test_the_winner_is_one_sentence():
    text = shown(answer(choice("a", 0.1), choice("b", 0.15)))
    assert text.splitlines()[0] == (
        "a is predicted fastest: 100 ms for forward and backward (90 ms to 110 ms), 500 TFLOP/s, "
        "2.0 GiB of 80.0. b takes 50% longer."
    )
    assert text.splitlines()[-1] == "    longca.attention(q, k, v, mask, kernel='a')"


def test_a_shorter_time_that_goes_beyond_the_measurements_is_said_beside_the_first_choice():
    first = shown(answer(choice("a", 0.1), choice("b", 0.15), choice("c", 0.08))).splitlines()[0]
    assert first == (
        "a comes first: 100 ms for forward and backward (90 ms to 110 ms), 500 TFLOP/s, 2.0 GiB of 80.0. "
        "c is predicted to take 80 ms (72 ms to 88 ms), but nobody measured such calls. Within its interval, and so "
        "tied: c."
    )


def test_ties_are_called_ties_and_counted():
    first = shown(answer(*(choice(name, 0.1 + 0.001 * place) for place, name in enumerate("abcdef")))).splitlines()[0]
    assert first.endswith("Within its interval, and so tied: b, c, d and 2 more.")
    edge = answer(choice("a", 0.1), choice("b", 0.1 * 1.1), choice("c", 0.1 * 1.11))
    assert [one.kernel for one in edge.ties] == ["b"]


def test_what_does_not_fit_is_no_tie_and_no_runner_up():
    found = answer(choice("a", 0.1), choice("b", 0.101, fits=False))
    assert found.ties == ()
    first, *rest = shown(found).splitlines()
    assert first.endswith("2.0 GiB of 80.0.")
    assert any(line.split()[:1] == ["b"] and " no " in line for line in rest)


def test_where_nothing_fits_the_leanest_is_named():
    found = answer(
        choice("a", 0.1, fits=False, bytes_per_rank=2**37), choice("b", 0.2, fits=False, bytes_per_rank=2**38)
    )
    assert found.best is None
    text = shown(found)
    assert text.startswith("No choice fits Some GPU: the leanest takes 128.0 GiB of 80.0. Take fewer tokens or more")
    assert "longca.attention" not in text


def test_long_lists_are_cut_unless_all_is_asked_for():
    refused = tuple(Refused(f"r{i}", None, (f"no {i}",)) for i in range(9))
    found = answer(*(choice(f"k{i}", 0.1 + i) for i in range(10)), refused=refused)
    text = shown(found)
    assert "2 more choices: --all lists them" in text
    assert "1 more refusal: --all lists them" in text
    assert "k9" not in text
    everything = shown(found, everything=True)
    assert "--all" not in everything
    assert all(f"k{i}" in everything and f"r{i}" in everything for i in range(9))


def test_what_the_best_choice_rests_on_is_said():
    proof = Proof(7, "x", ("70000 tokens; measured up to 32768",), ("measured with torch 2; 3 is installed",), ("odd",))
    best = choice("a", 0.1, proof=proof, unknown=("workspace of a",), install=("pip install a",))
    text = shown(answer(best, choice("b", 9.0, proof=replace(proof, outside=("other",))), notes=("a note",)))
    assert "\nOutside the evidence: 70000 tokens; measured up to 32768.\n" in text
    for note in ("measured with torch 2; 3 is installed.", "odd.", "the workspace of a was not measured"):
        assert f"\nNote: {note}" in text
    assert "\nNote: a note.\n" in text
    assert "other" not in text
    assert "7 records, extrapolated" in text
    assert text.index("    pip install a\n") < text.index("    longca.attention(")


def test_a_reason_is_said_once_with_all_its_names():
    takes = {"a": "blocks", "b": "blocks", "c": "blocks of 64"}
    some = tuple(Refused(name, None, (f"{name} takes {form}; full is none of these.",)) for name, form in takes.items())
    other = (Refused(None, "x", ("too few ranks",), "Take more."), Refused(None, "y", ("too few ranks",), "Take more."))
    lines = shown(answer(choice("z", 0.1), refused=some + other)).splitlines()
    start = lines.index("refused:")
    assert lines[start + 1 : start + 4] == [
        "  a, b: takes blocks; full is none of these.",
        "  c: takes blocks of 64; full is none of these.",
        "  x, y: too few ranks. Take more.",
    ]


def test_why_says_where_a_choice_stands():
    proof = Proof(7, "a run abc", ("long",), ("torch",), ("odd",))
    found = answer(choice("a", 0.1), choice("b", 0.2, proof=proof, install=("pip install b",)))
    assert shown(found, why="b").splitlines() == [
        "b: place 2 of 2, 200 ms",
        "  forward 50 ms, backward 150 ms",
        "  learnt from 7 measured calls; the most similar is a run abc",
        "  long",
        "  torch",
        "  odd",
        "  to install: pip install b",
    ]
    refused = answer(refused=(Refused("c", None, ("too old.",), "Buy one."),), unmeasured=(Unmeasured("d", "none"),))
    assert shown(refused, why="c") == "c: too old. Buy one.\n"
    assert shown(refused, why="d") == "d is valid and not ranked: none\n"
    pair = shown(found, why="a+b")
    assert pair.startswith("a+b is not listed: ")
    assert all(f"{name}: place {place} of 2, " in pair for place, name in enumerate("ab", 1))
    assert "Valid on Some GPU, without evidence of how fast, and so not ranked:\n  d\n" in shown(refused)
    assert shown(refused, why="e") == "e was not examined; --all lists all kernels and strategies that were\n"


def test_choices_that_nobody_verified_are_marked():
    found = answer(
        choice("a", 0.1, unverified=True), choice("b", 0.15), unmeasured=(Unmeasured("c", "no", unverified=True),)
    )
    text = shown(found)
    assert text.startswith("a (unverified) is predicted fastest")
    assert "\na (unverified)" in text
    assert "and so not ranked: c (unverified)." in text
    assert "Unverified: nobody verified these kernels on this device." in text
    assert "b (unverified)" not in text
    assert "nobody verified it on this device" in shown(found, why="a")
    assert "nobody verified" not in shown(found, why="b")
    assert "nverified" not in shown(answer(choice("a", 0.1)))
