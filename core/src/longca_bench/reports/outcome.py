"""Outcomes in a terminal: for each problem the predicted and measured times, and the fastest choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from longca.plain_text import time_text
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.terminal import print_tables
from longca_bench.reports.text import print_problem, printable

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.measuring.outcome import Outcome, Timed

__all__ = ["print_outcomes"]

_NOTHING = "–"


def print_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Prints predicted and measured times of each problem. Before a measurement it prints the predictions."""
    for outcome in outcomes:
        console.print()
        print_problem(console, outcome.problem.get("text", ""))
        print_tables(console, [_table(outcome)])
        for line in (*_sentences(outcome), *_remarks(outcome)):
            console.print(printable(line), soft_wrap=True, markup=False)


def _has_records(outcome: Outcome) -> bool:
    return any(time.status is not None for way in outcome.ways for time in way.times.values())


def _table(outcome: Outcome) -> Table:
    compared = (Head("measured"), Head("error"), Head("inside", drop=2)) if _has_records(outcome) else ()
    about = (Head("choice", left=True), Head("direction", left=True), Head("predicted"), Head("interval", drop=3))
    rows = []
    for way in outcome.ways:
        times = list(way.times.items())
        for place, (direction, time) in enumerate(times if len(times) > 2 else times[:1]):  # a sum of one is itself
            measured = _measured(time, direction) if compared else ()
            predicted = _NOTHING if time.predicted is None else time_text(time.predicted)
            known = time.low is not None and time.high is not None
            interval = f"{time_text(time.low or 0)} to {time_text(time.high or 0)}" if known else _NOTHING
            cells = ("" if place else way.title, str(direction), predicted, interval, *measured)
            mark = Mark.FAILED if compared and time.measured is None and direction != "total" else Mark.NONE
            rows.append(tuple(Cell(text, mark=mark) for text in cells))
    return Table((*about, *compared), tuple(rows), "predicted and measured" if compared else "predicted")


def _measured(time: Timed, direction: str) -> tuple[str, str, str]:
    """Measured time, error, and whether the time is inside the interval. A direction without a time has its status."""
    if time.measured is None:
        return (_NOTHING if direction == "total" else time.status or "not measured"), _NOTHING, _NOTHING
    error = _NOTHING if time.error is None else f"{100 * time.error:+.1f} %"
    return (
        f"{time_text(time.measured)}{'~' * time.busy}",
        error,
        {True: "yes", False: "no", None: _NOTHING}[time.inside],
    )


def _sentences(outcome: Outcome) -> Iterator[str]:
    """The fastest choice, and the cost of the recommended one."""
    if not outcome.ranked:
        yield "No evidence ranks these choices. They are valid, and in the order of the plugins."
    if not _has_records(outcome):
        return
    fastest, first = outcome.fastest, outcome.ways[0]
    if fastest is None or fastest.measured is None:
        why = "The machine was busy, so no choice is named the fastest."
        yield why if outcome.busy else "No choice has a measured time for every direction."
        return
    time = time_text(fastest.measured)
    if not outcome.ranked:
        yield f"{fastest.title} was fastest as measured: {time}."
    elif outcome.regret is None:
        yield f"{fastest.title} was fastest as measured: {time}. The recommended {first.title} has no measured time."
    elif outcome.regret == 0:
        yield f"The recommended {first.title} was fastest as measured: {time}. Its regret is 0 %."
    else:
        longer = f"{100 * outcome.regret:.1f} % longer"
        yield f"{fastest.title} was fastest as measured: {time}. The recommended {first.title} took {longer}."


def _remarks(outcome: Outcome) -> Iterator[str]:
    """The choices that were left out, and remarks on the evidence."""
    for name, how in outcome.left_out.items():
        yield f"{name} is not installed here and not measured. To install it: {how}"
    outside = dict.fromkeys(note for way in outcome.ways[:1] for note in way.notes[1:])
    yield from (f"Note: {note}." for note in (*outside, *outcome.notes))
