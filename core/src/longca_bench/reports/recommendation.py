"""A recommendation in a terminal: one sentence on the winner, the choices, the refusals by reason, and the call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING

from longca.manifests.verdict import paragraph
from longca.plain_text import time_text
from longca_bench.reports.table import Head, Table, table
from longca_bench.reports.terminal import print_tables
from longca_bench.reports.text import by_reason, console, print_problem, printable
from longca_bench.reports.words import counted, memory_unit, throughput_unit

if TYPE_CHECKING:
    from rich.console import Console

    from longca_advice.choices import Choice, Recommendation, Refused, Unmeasured

__all__ = [
    "marked",
    "meanings",
    "print_recommendation",
    "print_why",
    "recommendation_text",
    "remarks",
    "say",
    "say_nothing",
]

#: The number of choices and of reasons without --all.
_SHOWN = 8


def print_recommendation(console: Console, found: Recommendation, *, everything: bool = False) -> None:
    """Prints a question and its answer, with the first choices and refusals or with all."""
    print_problem(console, found.problem["text"])
    say(console, _sentence(found))
    if found.choices:
        console.print()
        shown = found.choices if everything else found.choices[:_SHOWN]
        print_tables(console, [_table(found, shown)])
        _say_hidden(console, len(found.choices) - len(shown), "choice")
        if found.why:
            say(console, found.why)
        totals = [(choice.fits is False, choice.seconds.total) for choice in shown]
        if totals != sorted(totals):
            say(console, "Order: a time counts as longer where nobody measured such calls, and for pairs.")
    say(console, *_unmeasured(found), *meanings([*found.choices, *found.unmeasured]), *remarks(found, found.best))
    if found.refused:
        reasons = by_reason(_refusal(refused) for refused in found.refused)
        some = dict(list(reasons.items())[: None if everything else _SHOWN])
        say(console, "\nrefused:", *(f"  {', '.join(names)}: {reason}" for reason, names in some.items()))
        hidden = [names for reason, names in reasons.items() if reason not in some]
        _say_hidden(console, sum(map(len, hidden)), "refusal")
    if found.best is not None:
        console.print()
        commands = [" && ".join(found.best.install)] if found.best.install else []
        say(console, *(f"    {line}" for line in (*commands, *found.best.call.splitlines())))


def recommendation_text(found: Recommendation) -> str:
    """The question and its answer as plain text."""
    text = StringIO()
    print_recommendation(console(text), found)
    return text.getvalue().rstrip()


def say(console: Console, *lines: str) -> None:
    """Prints lines as they are, without wrapping them."""
    for text in lines:
        for line in text.split("\n"):
            console.print(printable(line), soft_wrap=True, markup=False)


def say_nothing(console: Console, found: Recommendation, what: str) -> None:
    """Prints why nothing can be chosen for a part of a question, and the reason that refuses most kernels."""
    say(console, f"\n{what}: {_nothing(found)}", *_unmeasured(found))
    reasons = by_reason(_refusal(refused) for refused in found.refused)
    if reasons:
        common = max(reasons, key=lambda reason: len(reasons[reason]))
        say(console, f"refused: {', '.join(reasons.pop(common))}: {common}")
        _say_hidden(console, sum(map(len, reasons.values())), "refusal")


def print_why(console: Console, found: Recommendation, name: str, strategies: Collection[str]) -> None:
    """Prints the place of one kernel, strategy or pair, and the reasons for it."""
    print_problem(console, found.problem["text"])
    lines = list(_about(found, name))
    if not lines and "+" in name:
        lines = [f"{name} is not listed: a pair is listed if it is clearly faster than each of its kernels alone"]
        lines += [line for half in name.split("+") for line in _about(found, half.strip())]
    elif not lines and found.ranks == 1 and name in strategies:
        lines = [f"{name} was not examined: a strategy is examined for two or more devices; give --gpus 2 or more"]
    say(console, *(lines or [f"{name} was not examined; --all lists all kernels and strategies that were"]))


def _sentence(found: Recommendation) -> str:
    """The winner, and by how much."""
    best = found.best
    if best is None:
        return _nothing(found)
    seconds = best.seconds
    what = "forward" if best.backward is None else "forward and backward"
    others = [choice for choice in found.choices[1:] if choice.fits is not False]
    unseen = min(others, key=lambda choice: choice.seconds.total, default=best)
    is_fastest = seconds.total <= unseen.seconds.total
    place = f"{' (unverified)' * best.unverified} {'is predicted fastest' if is_fastest else 'comes first'}"
    unit, by = throughput_unit(best.tflops)
    answer = f"{best.title}{place}: {_span(best, f' for {what}')}, {best.tflops * by:.0f} {unit}"
    answer += " on each device" if found.ranks > 1 else ""
    held, size = memory_unit(best.bytes_per_rank)
    answer += f", {best.bytes_per_rank * size:.1f} {held}"
    memory = found.problem["memory"]
    answer += f" of {memory / 2**30:.1f}{' GiB' * (held != 'GiB')}." if memory else "."
    if not is_fastest:
        answer += f" {unseen.title} is predicted to take {_span(unseen)}, but nobody measured such calls."
    ties = found.ties
    if ties:
        names = ", ".join(choice.title for choice in ties[:3])
        more = f" and {len(ties) - 3} more" if len(ties) > 3 else ""
        return f"{answer} Within its interval, and so tied: {names}{more}."
    if others:
        gain = others[0].seconds.total / seconds.total - 1
        return f"{answer} {others[0].title} takes {gain:.0%} longer."
    return answer


def _span(choice: Choice, what: str = "") -> str:
    """The time of a choice with its interval."""
    seconds = choice.seconds
    return f"{time_text(seconds.total)}{what} ({time_text(seconds.low)} to {time_text(seconds.high)})"


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


def _table(found: Recommendation, choices: Sequence[Choice]) -> Table:
    names = ("strategy", "mesh", "placement") if found.ranks > 1 else ()
    rate, by = throughput_unit(max(choice.tflops for choice in choices))
    held, size = memory_unit(max(choice.bytes_per_rank for choice in choices))
    heads = [
        *(Head(name, left=True) for name in ("kernel", *names)),
        Head("time"),
        Head("interval", drop=4),
        Head(rate, drop=5),
        Head(held, drop=3),
        Head("fits", drop=2),
        Head("evidence", left=True, wrap=True, drop=6),
    ]
    rows = [
        [
            marked(choice),
            *(getattr(choice, name) or "" for name in names),
            time_text(choice.seconds.total),
            f"{time_text(choice.seconds.low)} to {time_text(choice.seconds.high)}",
            f"{choice.tflops * by:.0f}",
            f"{choice.bytes_per_rank * size:.1f}",
            {True: "yes", False: "no", None: "?"}[choice.fits],
            f"{counted(choice.proof.records, 'record')}{', extrapolated' if choice.proof.extrapolates else ''}",
        ]
        for choice in choices
    ]
    return table(heads, rows)


def marked(one: Choice | Unmeasured) -> str:
    """The kernel of a choice, with marks if nobody verified it on the device and if something is missing here."""
    here = " *" if one.install else " **" if one.lacks else ""
    return f"{one.kernel}{' (unverified)' * one.unverified}{here}"


def _unmeasured(found: Recommendation) -> Iterator[str]:
    kernels = [marked(one) for one in found.unmeasured if one.strategy is None]
    if kernels and found.choices:
        yield f"Valid, but without evidence, and so not ranked: {', '.join(kernels)}."
    elif kernels:
        yield from (f"  {name}" for name in kernels)
    reasons: dict[str, list[str]] = {}
    for one in found.unmeasured:
        if one.strategy is not None:
            reasons.setdefault(one.why.rstrip("."), []).append(one.strategy)
    yield from (f"Not ranked: {', '.join(names)}: {why}." for why, names in reasons.items())


def meanings(ones: Sequence[Choice | Unmeasured]) -> Iterator[str]:
    """What the marks of some kernels mean."""
    if any(one.unverified for one in ones):
        advice = "Run `longca verify --unverified --kernel NAME` on such a device before you use one."
        yield f"Unverified: nobody verified these kernels on this device. {advice}"
    if any(one.install for one in ones):
        yield "* not installed here; --why NAME has the line that installs it"
    if any(one.lacks and not one.install for one in ones):
        yield "** not available here; --why NAME says why"


def remarks(found: Recommendation, best: Choice | None) -> Iterator[str]:
    """Further remarks. Remarks on the choice that is taken come first."""
    if best is not None:
        for text in best.proof.outside:
            yield f"Outside the evidence: {text}."
        for text in (*(best.proof.versions if found.here else ()), *best.proof.notes):
            yield f"Note: {text}."
        for text in best.unknown:
            yield f"Note: the {text} was not measured and counts as 0, so the call takes at least this memory."
    yield from (f"Note: {text}." for text in found.notes)


def _refusal(refused: Refused) -> tuple[str, str]:
    """The name of a refused way, and the reasons against it with their remedy."""
    name = " with ".join(part for part in (refused.kernel, refused.strategy) if part) or "every kernel"
    reasons = paragraph(reason.removeprefix(f"{refused.kernel} ") for reason in refused.reasons)
    advice = f" {refused.advice.rstrip('.')}." if refused.advice else ""
    return name, f"{reasons}{'' if reasons.endswith('.') else '.'}{advice}"


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
            yield f"  {proof.learnt}; the most similar is {proof.nearest}"
            for text in (*proof.outside, *proof.versions, *proof.notes):
                yield f"  {text}"
            if choice.unverified:
                yield "  nobody verified it on this device"
            if choice.lacks:
                yield f"  {', '.join(choice.lacks)}"
            for command in choice.install:
                yield f"  to install: {command}"
    for one in found.unmeasured:
        if name in (one.kernel, one.strategy):
            yield f"{marked(one)} is valid and not ranked: {one.why}"
    for refused in found.refused:  # a strategy's name may be followed by its mesh and placement
        if name in (refused.kernel, (refused.strategy or "").partition(" ")[0]):
            yield ": ".join(_refusal(refused))
