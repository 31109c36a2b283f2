"""`longca run --recommended`: runs a problem's choices in place of all kernels, and compares them with predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from longca_bench.cli.options import print_json

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.cli.run_options import RunOptions
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.measuring.records import Record
    from longca_bench.suites.suite import Suite

__all__ = ["RunCommand", "advised", "measured_outcomes", "print_advised", "write_outcomes"]

#: Choices that --recommended measures without a number.
_MOST = 3


class RunCommand(TyperCommand):
    """A command whose option --recommended needs no number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses arguments, with the number that is left out."""
        return super().parse_args(ctx, list(_with_number(args)))


def _with_number(args: Sequence[str]) -> Iterator[str]:
    for place, text in enumerate(args):
        yield text
        if text == "--recommended" and not "".join(args[place + 1 : place + 2]).lstrip("-").isdecimal():
            yield str(_MOST)


def advised(
    options: RunOptions, suite: Suite, where: Device, registry: Registry, ranks: int | None
) -> tuple[Suite, list[Outcome]]:
    """The suite that measures a suite's recommended choices, and their predictions.

    A resumed run keeps its original predictions.

    Args:
        options: The options of the command.
        suite: The suite that was made of a mask pattern.
        where: The device.
        registry: The registry of kernels and strategies.
        ranks: Ranks of the job, or None without a job.

    Raises:
        RequestError: Nothing can be measured here, or the run to resume has other choices.
    """
    from longca_bench.measuring.advised import advise, problems, suite_of_choices

    assert options.recommended is not None
    outcomes = _earlier(options, suite, where, registry, ranks)
    if outcomes is None:
        most = options.recommended
        outcomes = [advise(problem, where, registry, most=most, ranks=ranks) for problem in problems(suite)]
    return suite_of_choices(suite, outcomes), outcomes


def _earlier(
    options: RunOptions, suite: Suite, where: Device, registry: Registry, ranks: int | None
) -> list[Outcome] | None:
    """The predictions of the resumed run, or None if it has none."""
    from longca.errors import RequestError
    from longca_bench.measuring.advised import problems, with_cases
    from longca_bench.measuring.outcome import Outcome

    file = _file(options.out) if options.out is not None and options.resume else None
    if file is None or not file.exists():
        return None
    try:
        said = [Outcome.model_validate(one) for one in json.loads(file.read_bytes())]
    except (ValueError, TypeError, OSError) as error:
        raise RequestError(f"cannot resume: {file}: {error}. Start another run with --out") from None
    asked = list(problems(suite))
    same = len(said) == len(asked) and all(one.asked == options.recommended for one in said)
    pairs = zip(asked, said, strict=same)
    if not same or any(with_cases(problem, one, where, registry, ranks) != one for problem, one in pairs):
        raise RequestError(
            f"cannot resume: {file} is of another problem, device or number of choices. Start another run with --out"
        )
    return said


def _file(folder: Path) -> Path:
    return folder / "advice.json"


def write_outcomes(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes outcomes to a run's folder.

    Raises:
        RecordError: The file could not be written.
    """
    from longca.errors import RecordError

    text = json.dumps([outcome.as_json() for outcome in outcomes], indent=2) + "\n"
    try:
        _file(folder).write_text(text, "utf-8")
    except OSError as error:
        raise RecordError(f"cannot write to {_file(folder)}: {error.strerror}. Make room there") from None


def measured_outcomes(folder: Path, outcomes: Sequence[Outcome], records: Sequence[Record]) -> list[Outcome]:
    """Outcomes with their measurements, which are also written to the run's folder.

    Args:
        folder: The run's folder.
        outcomes: The predicted outcomes.
        records: The run's records.
    """
    by_case = {record.case: record for record in records}
    measured = [outcome.with_records(by_case) for outcome in outcomes]
    write_outcomes(folder, measured)
    return measured


def print_advised(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """Prints outcomes, before or after their measurement.

    Args:
        outcomes: The outcomes.
        as_json: Whether to print JSON.
    """
    from longca_bench.reports.outcome import print_outcomes
    from longca_bench.reports.text import console

    if as_json:
        print_json([outcome.as_json() for outcome in outcomes])
    else:
        print_outcomes(console(), outcomes)
