"""Interleaving: two kernels, each in a process of its own, taking turns on every case, so that drift cancels.

Clocks, temperature and neighbours change over minutes. Two kernels that are measured in turn meet the same of each; a
run of one and then a run of the other do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from longca_bench.measuring.messages import Outcome
from longca_bench.measuring.pool import Worker
from longca_bench.suites.cases import Case

__all__ = ["ROUNDS", "Turns"]

#: Turns that each kernel takes on a case.
ROUNDS = 4


class Turns:
    """Measures pairs of cases by turns.

    Args:
        workers: One worker for each of the two kernels.
        pair: The cases of both kernels on one problem; one alone where only that kernel takes it.
        deadline: Seconds a turn may take.
    """

    def __init__(self, workers: dict[str, Worker], pair: Sequence[Case], deadline: float) -> None:
        self._workers, self._pair, self._deadline = workers, pair, deadline
        self._outcomes: dict[Case, Outcome] | None = None

    def __call__(self, case: Case) -> Outcome:
        """What came of a case of the pair, all turns together."""
        if self._outcomes is None:
            self._outcomes = self._take_turns()
        return self._outcomes[case]

    def _take_turns(self) -> dict[Case, Outcome]:
        turns: dict[Case, list[Outcome]] = {case: [] for case in self._pair}
        for _ in range(ROUNDS):
            for case, outcomes in turns.items():
                if not outcomes or outcomes[-1].status == "ok":
                    outcomes.append(self._workers[case.kernel].run(case, self._deadline))
        return {case: _joined(outcomes) for case, outcomes in turns.items()}


def _joined(outcomes: list[Outcome]) -> Outcome:
    """All turns' samples as one outcome; the failure, where a turn failed."""
    last = outcomes[-1]
    if last.status != "ok":
        return last
    samples = _all("samples", outcomes)
    middle = median(samples)
    flops = last.fields["tflops"] * last.fields["median"]
    fields = {
        **last.fields,
        **{name: _all(name, outcomes) for name in ("samples", "wall", "warm_up")},
        "median": middle,
        "tflops": flops / middle,
    }
    return replace(last, fields=fields)


def _all(name: str, outcomes: list[Outcome]) -> tuple[float, ...]:
    return tuple(value for outcome in outcomes for value in outcome.fields[name])
