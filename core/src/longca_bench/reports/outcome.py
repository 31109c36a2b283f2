"""Outcomes in a terminal: for each problem a table of predicted and measured times, and which choice was fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from longca_bench.reports.recommendation import time_text
from longca_bench.reports.run_cells import mask_name
from longca_bench.reports.text import printable, safe
from longca_bench.reports.whole_table import print_whole

if TYPE_CHECKING:
    from rich.console import Console

    from longca_bench.measuring.outcome import Outcome, Timed, Way

__all__ = ["print_outcomes"]

_NOTHING = "–"
#: Mask factors that a title has room for.
_NAMED = ("block", "kept", "window", "prefix", "global_tokens")


def print_outcomes(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Prints predicted and measured times; before anything is measured, what would be.

    Args:
        console: Where to.
        outcomes: The outcomes, one for each problem.
    """
    for outcome in outcomes:
        console.print()
        console.print(f"[bold]{safe(_title(outcome))}[/]")
        print_whole(console, _table(outcome))
        for line in (*_sentences(outcome), *_remarks(outcome)):
            console.print(printable(line), soft_wrap=True, markup=False)


def _title(outcome: Outcome) -> str:
    about = outcome.problem
    mask = mask_name(about["mask"], {name: about["factors"][name] for name in _NAMED if name in about["factors"]})
    devices = outcome.device if outcome.ranks == 1 else f"{outcome.ranks} × {outcome.device}"
    heads = f"{about['heads_q']}:{about['heads_kv']} heads of {about['head_dim']}"
    said = "predicted and measured" if _has_records(outcome) else "predicted"
    return f"{mask}, {about['seqlen']} tokens, {heads}, {about['dtype']}, {devices}: {said}"


def _has_records(outcome: Outcome) -> bool:
    return any(time.status is not None for way in outcome.ways for time in way.times.values())


def _table(outcome: Outcome) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    with_records = _has_records(outcome)
    table.add_column("choice")
    table.add_column("direction")
    for name in ("predicted", "interval", *(("measured", "error", "inside") if with_records else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for way in outcome.ways:
        for place, (direction, time) in enumerate(_shown(way)):
            measured = _measured(time, direction) if with_records else ()
            table.add_row(safe("" if place else way.title), direction, *_predicted(time), *measured)
    return table


def _shown(way: Way) -> list[tuple[str, Timed]]:
    """The rows of a way: its directions and their sum, or the one direction that it has."""
    rows = list(way.times.items())
    return rows if len(rows) > 2 else rows[:1]


def _predicted(time: Timed) -> tuple[str, str]:
    if time.predicted is None:
        return _NOTHING, _NOTHING
    if time.low is None or time.high is None:
        return time_text(time.predicted), _NOTHING
    return time_text(time.predicted), f"{time_text(time.low)} to {time_text(time.high)}"


def _measured(time: Timed, direction: str) -> tuple[str, str, str]:
    """Measured time, error, and whether it is inside; the status of a direction that has no time."""
    if time.measured is None:
        return (_NOTHING if direction == "total" else time.status or "not measured"), _NOTHING, _NOTHING
    error = _NOTHING if time.error is None else f"{100 * time.error:+.1f} %"
    return time_text(time.measured), error, {True: "yes", False: "no", None: _NOTHING}[time.inside]


def _sentences(outcome: Outcome) -> Iterator[str]:
    """Which choice was fastest, and what taking the recommended one costs."""
    if not outcome.ranked:
        yield "No evidence ranks these choices. They are valid, and in the order of the plugins."
    if not _has_records(outcome):
        return
    fastest, first = outcome.fastest, outcome.ways[0]
    if fastest is None or fastest.measured is None:
        yield "No choice has a measured time for every direction."
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
    """What was left out, and what there is to know of the evidence."""
    for name, how in outcome.left_out.items():
        yield f"{name} is not installed here and not measured. To install it: {how}"
    outside = dict.fromkeys(note for way in outcome.ways[:1] for note in way.notes[1:])
    yield from (f"Note: {note}." for note in (*outside, *outcome.notes))
