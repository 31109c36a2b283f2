"""A recommendation in a terminal: the winner in one sentence, then a table, what is refused, and the line to paste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from longca_bench.reports.text import printable, safe
from longca_bench.reports.whole_table import print_whole

if TYPE_CHECKING:
    from rich.console import Console

    from longca_advice.choices import Choice, Recommendation, Refused

__all__ = ["print_recommendation", "print_why", "time_text"]

#: Choices and refusals that are shown unless all are asked for.
_SHOWN = 8


def print_recommendation(console: Console, found: Recommendation, *, everything: bool = False) -> None:
    """Prints an answer.

    Args:
        console: Where to.
        found: The recommendation.
        everything: Whether to list all choices and refusals.
    """
    console.print(printable(_sentence(found)), soft_wrap=True, markup=False)
    if found.choices:
        console.print()
        shown = found.choices if everything else found.choices[:_SHOWN]
        print_whole(console, _table(found, shown))
        _say_hidden(console, len(found.choices) - len(shown), "choice")
    for line in (*_unmeasured(found), *_notes(found)):
        console.print(printable(line), soft_wrap=True, markup=False)
    if found.refused:
        console.print("\nrefused:")
        shown_refusals = found.refused if everything else found.refused[:_SHOWN]
        for refused in shown_refusals:
            console.print(printable(f"  {_refusal(refused)}"), soft_wrap=True, markup=False)
        _say_hidden(console, len(found.refused) - len(shown_refusals), "refusal")
    if found.best is not None:
        console.print()
        for command in found.best.install:
            console.print(printable(f"    {command}"), soft_wrap=True, markup=False)
        for line in found.best.call.splitlines():
            console.print(printable(f"    {line}"), soft_wrap=True, markup=False)


def print_why(console: Console, found: Recommendation, kernel: str) -> None:
    """Prints what is known of one kernel, strategy or pair: why it is where it is.

    Args:
        console: Where to.
        found: The recommendation.
        kernel: The name of a kernel, a pair or a strategy.
    """
    lines = list(_about(found, kernel))
    if not lines and "+" in kernel:
        lines = [f"{kernel} is not listed: a pair is, where both take the problem and it is quicker than each alone"]
        lines += [line for half in kernel.split("+") for line in _about(found, half.strip())]
    for line in lines or [f"nothing of {kernel} was looked at; --all lists what was"]:
        console.print(printable(line), soft_wrap=True, markup=False)


def time_text(seconds: float) -> str:
    """A time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:{'.3g' if seconds < 999.5 * size else '.0f'}} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def _sentence(found: Recommendation) -> str:
    """The winner, and by how much."""
    best = found.best
    if best is None:
        return _nothing(found)
    seconds = best.seconds
    what = "forward" if best.backward is None else "forward and backward"
    answer = (
        f"{best.title} is predicted fastest on {_devices(found)}: {time_text(seconds.total)} for {what} "
        f"({time_text(seconds.low)} to {time_text(seconds.high)}), {best.tflops:.0f} TFLOP/s"
    )
    answer += " on each device" if found.ranks > 1 else ""
    answer += f", {best.bytes_per_rank / 2**30:.1f} GiB"
    memory = found.problem["memory"]
    answer += f" of {memory / 2**30:.1f}." if memory else "."
    ties = found.ties
    if ties:
        names = ", ".join(choice.title for choice in ties[:3])
        more = f" and {len(ties) - 3} more" if len(ties) > 3 else ""
        return f"{answer} Within its interval, and so tied: {names}{more}."
    others = [choice for choice in found.choices[1:] if choice.fits is not False]
    if others:
        gain = others[0].seconds.total / seconds.total - 1
        return f"{answer} {others[0].title} takes {gain:.0%} longer."
    return answer


def _nothing(found: Recommendation) -> str:
    """Why there is no winner."""
    if found.choices:
        least = min(choice.bytes_per_rank for choice in found.choices)
        return (
            f"No choice fits {_devices(found)}: the leanest takes {least / 2**30:.1f} GiB of "
            f"{found.problem['memory'] / 2**30:.1f}. Take fewer tokens or more devices."
        )
    if any(refused.kernel is None and refused.strategy is None for refused in found.refused):
        return f"Nothing fits {_devices(found)}."
    if found.unmeasured:
        if any(one.strategy for one in found.unmeasured):
            return f"Nothing can be ranked on {_devices(found)}."
        return f"Valid on {_devices(found)}, without evidence of how fast, and so not ranked:"
    return f"Nothing is valid on {_devices(found)}."


def _devices(found: Recommendation) -> str:
    return found.device if found.ranks == 1 else f"{found.ranks} × {found.device}"


def _table(found: Recommendation, choices: tuple[Choice, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    if found.ranks > 1:
        for name in ("strategy", "mesh", "placement"):
            table.add_column(name, no_wrap=True)
    for name in ("time", "interval", "TFLOP/s", "GiB", "fits"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("evidence")
    for choice in choices:
        seconds = choice.seconds
        shared = (choice.strategy or "", choice.mesh or "", choice.placement or "") if found.ranks > 1 else ()
        table.add_row(
            safe(choice.kernel),
            *map(safe, shared),
            time_text(seconds.total),
            f"{time_text(seconds.low)} to {time_text(seconds.high)}",
            f"{choice.tflops:.0f}",
            f"{choice.bytes_per_rank / 2**30:.1f}",
            {True: "yes", False: "no", None: "?"}[choice.fits],
            safe(_evidence(choice)),
        )
    return table


def _evidence(choice: Choice) -> str:
    """What a choice rests on, in a few words."""
    text = f"{choice.proof.records} records"
    return f"{text}, extrapolated" if choice.proof.extrapolates else text


def _unmeasured(found: Recommendation) -> Iterator[str]:
    kernels = [one.kernel for one in found.unmeasured if one.strategy is None]
    if kernels and found.choices:
        yield f"Valid, but without evidence, and so not ranked: {', '.join(kernels)}."
    elif kernels:
        yield from (f"  {name}" for name in kernels)
    reasons: dict[str, list[str]] = {}
    for one in found.unmeasured:
        if one.strategy is not None:
            reasons.setdefault(one.why.rstrip("."), []).append(one.strategy)
    yield from (f"Not ranked: {', '.join(names)}: {why}." for why, names in reasons.items())


def _notes(found: Recommendation) -> Iterator[str]:
    """What else there is to know; of the best choice first."""
    if found.best is not None:
        for text in found.best.proof.outside:
            yield f"Outside the evidence: {text}."
        for text in (*(found.best.proof.versions if found.here else ()), *found.best.proof.notes):
            yield f"Note: {text}."
        for text in found.best.unknown:
            yield f"Note: the {text} is not stated and counts as 0."
    yield from (f"Note: {text}." for text in found.notes)


def _refusal(refused: Refused) -> str:
    name = " with ".join(part for part in (refused.kernel, refused.strategy) if part) or "every kernel"
    reasons = " ".join(refused.reasons)
    advice = f" {refused.advice.rstrip('.')}." if refused.advice else ""
    return f"{name}: {reasons}{'' if reasons.endswith('.') else '.'}{advice}"


def _say_hidden(console: Console, hidden: int, noun: str) -> None:
    if hidden:
        console.print(f"{hidden} more {noun}{'s' if hidden > 1 else ''}: --all lists them")


def _about(found: Recommendation, name: str) -> Iterator[str]:
    for place, choice in enumerate(found.choices, 1):
        if name in (choice.kernel, choice.strategy):
            seconds, proof = choice.seconds, choice.proof
            yield f"{choice.title}: place {place} of {len(found.choices)}, {time_text(seconds.total)}"
            backward = "" if seconds.backward is None else f", backward {time_text(seconds.backward)}"
            yield f"  forward {time_text(seconds.forward)}{backward}"
            yield f"  learnt from {proof.records} measured calls; most alike is {proof.nearest}"
            for text in (*proof.outside, *proof.versions, *proof.notes):
                yield f"  {text}"
            for command in choice.install:
                yield f"  to install: {command}"
    for one in found.unmeasured:
        if name in (one.kernel, one.strategy):
            yield f"{one.kernel} is valid and not ranked: {one.why}"
    for refused in found.refused:  # a strategy's may be of some of its meshes and placements, which follow its name
        if name in (refused.kernel, (refused.strategy or "").partition(" ")[0]):
            yield _refusal(refused)
