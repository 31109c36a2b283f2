"""Interleaving: two kernels take turns on every case, so that drift cancels.

Clocks, temperature and neighbours change over minutes. Two kernels that take turns meet the same changes. Two runs, one
after the other, do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from longca_bench.measuring.messages import Result
from longca_bench.measuring.status import Status
from longca_bench.suites.case import Case
from longca_bench.suites.tasks import Task

__all__ = ["ROUNDS", "Turns"]

#: Turns that each kernel takes on a case.
ROUNDS = 4


class Turns:
    """Measures the tasks of one problem by turns.

    Args:
        measure: Measures a task within a deadline.
        pair: The tasks of both kernels on one problem, or one task if only one kernel takes the problem.
    """

    def __init__(self, measure: Callable[[Task, float], Result], pair: Sequence[Task]) -> None:
        self._measure, self._pair = measure, pair
        self._results: dict[Case, Result] | None = None

    def __call__(self, task: Task, seconds: float) -> Result:
        """The result of all turns of a task together.

        Args:
            task: A task of the pair.
            seconds: The deadline of each turn.
        """
        if self._results is None:
            self._results = self._take_turns(seconds)
        return self._results[task.case]

    def _take_turns(self, seconds: float) -> dict[Case, Result]:
        turns: dict[Case, list[Result]] = {task.case: [] for task in self._pair}
        for _ in range(ROUNDS):
            for task in self._pair:
                results = turns[task.case]
                if not results or results[-1].status is Status.OK:
                    results.append(self._measure(task, seconds))
        return {case: _joined(results) for case, results in turns.items()}


def _joined(results: list[Result]) -> Result:
    """One result with the samples of all turns, or the failure of a turn."""
    last = results[-1]
    if last.status is not Status.OK:
        return last
    samples = _all("samples", results)
    middle = median(samples)
    flops = last.fields["tflops"] * last.fields["median"]
    fields = {
        **last.fields,
        **{name: _all(name, results) for name in ("samples", "wall", "warm_up")},
        "machine": next((each for each in _each("machine", results) if each["busy"]), last.fields["machine"]),
        "median": middle,
        "tflops": flops / middle,
    }
    return replace(last, fields=fields)


def _each(name: str, results: list[Result]) -> Iterator[Any]:
    return (result.fields[name] for result in results)


def _all(name: str, results: list[Result]) -> tuple[float, ...]:
    return tuple(value for values in _each(name, results) for value in values)
