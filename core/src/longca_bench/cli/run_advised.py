"""`longca run --recommended`: runs a problem's choices in place of all kernels, and compares them with predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca_bench.cli.options import print_json

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.cli.run_options import RunOptions
    from longca_bench.measuring.outcome import Outcome
    from longca_bench.measuring.records import Record
    from longca_bench.suites.suite import Suite

__all__ = ["advised", "measured_outcomes", "print_advised", "write_outcomes"]


def advised(
    options: RunOptions, suite: Suite, where: Device, registry: Registry, ranks: int | None
) -> tuple[Suite, list[Outcome]]:
    """The suite that measures a suite's recommended choices, and their predictions.

    A resumed run keeps its original predictions. Other choices than before, or none that can be measured, are a
    RequestError.
    """
    from longca.errors import RequestError
    from longca_bench.measuring.advised import advise, problems, suite_of_choices, with_cases
    from longca_bench.measuring.outcome import Outcome

    assert options.recommended is not None
    asked, file = list(problems(suite)), None if options.out is None else _file(options.out)
    if file is None or not options.resume or not file.exists():
        most = options.recommended
        outcomes = [advise(problem, where, registry, most=most, ranks=ranks) for problem in asked]
        return suite_of_choices(suite, outcomes), outcomes
    try:
        outcomes = [Outcome.model_validate(one) for one in json.loads(file.read_bytes())]
    except (ValueError, TypeError, OSError) as error:
        raise RequestError(f"cannot resume: {file}: {error}. Start another run with --out") from None
    same = len(outcomes) == len(asked) and all(one.asked == options.recommended for one in outcomes)
    pairs = zip(asked, outcomes, strict=same)
    if not same or any(with_cases(problem, one, where, registry, ranks) != one for problem, one in pairs):
        raise RequestError(
            f"cannot resume: {file} is of another problem, device or number of choices. Start another run with --out"
        )
    return suite_of_choices(suite, outcomes), outcomes


def _file(folder: Path) -> Path:
    return folder / "advice.json"


def write_outcomes(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Writes outcomes to a run's folder. A folder without room is a RecordError."""
    from longca.errors import RecordError

    try:
        _file(folder).write_text(json.dumps(_as_json(outcomes), indent=2) + "\n", "utf-8")
    except OSError as error:
        raise RecordError(f"cannot write to {_file(folder)}: {error.strerror}. Make room there") from None


def measured_outcomes(folder: Path, outcomes: Sequence[Outcome], records: Sequence[Record]) -> list[Outcome]:
    """Outcomes with the measurements of records, which are also written to the run's folder."""
    by_case = {record.case: record for record in records}
    measured = [outcome.with_records(by_case) for outcome in outcomes]
    write_outcomes(folder, measured)
    return measured


def print_advised(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """Prints outcomes, before or after their measurement."""
    from longca_bench.reports.outcome import print_outcomes
    from longca_bench.reports.text import console

    if as_json:
        print_json(_as_json(outcomes))
    else:
        print_outcomes(console(), outcomes)


def _as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [outcome.model_dump(mode="json") for outcome in outcomes]
