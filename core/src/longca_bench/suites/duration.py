"""Durations: the time that a run will take, predicted before it starts and without torch.

The cost model predicts one call of each case. Warm-up and samples repeat the call (`longca_bench.measuring.timing`).
Verification repeats them on other inputs, and the runner compares them with references. Each case and each kernel have
fixed costs beside their calls: inputs, processes and compilation. The costs on a GPU are fitted to the times between
the records of `results`. All longer runs there took between half of the prediction and twice as
long.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from longca.adviser import AUTO
from longca.errors import UnsupportedError
from longca.manifests import Device, Direction
from longca.manifests.pairs import singles, split
from longca.masks import get_pattern
from longca.plugins import Registry
from longca_advice.devices import evidence_name
from longca_advice.fit import Call
from longca_advice.layout_costs import LayoutCosts
from longca_advice.request import Request
from longca_advice.sources import sources
from longca_advice.strategies import candidate_of
from longca_advice.work import work_of
from longca_bench.suites.case import Case, Parallel
from longca_bench.suites.tasks import is_elsewhere

__all__ = ["WITHIN", "Duration", "case_seconds", "duration_of", "is_measured"]

#: The factor within which runs of `results` are predicted.
WITHIN = 2.0
#: Calls of warm-up on a CPU, the least samples, and the seconds of samples, as in `longca_bench.measuring.timing`.
_WARM_UP, _LEAST, _BUDGET = 2, 3, 0.25


class _Costs(NamedTuple):
    """The cost of a run beside its calls, in seconds of each case, each case that ranks share, and each kernel.

    Ranks start, and one of them computes alone. `checked` is the factor on calls for their verification, and `samples`
    the most samples of a case.
    """

    case: float
    shared: float
    kernel: float
    checked: float
    samples: int


#: The costs by the kind of the device. A CPU's are those of one run of the suite `quick` and of `distributed_quick`.
_COSTS = {
    "cuda": _Costs(case=2.0, shared=8.0, kernel=15.0, checked=4.0, samples=10),
    "cpu": _Costs(case=0.3, shared=3.0, kernel=1.0, checked=2.5, samples=30),
}
#: FLOP/s of a CPU without measurements: those of two cores by the kernels of `quick`, with its float32.
_CPU_RATE = 6e10
#: The most cases that are predicted, unless one mask has more, and the seconds after which no further case is.
_MOST, _PATIENCE = 200, 5.0
#: Kernels and reasons that a sentence names.
_NAMED = 4


@dataclass(frozen=True)
class Duration:
    """The predicted duration of a run.

    `calls` are the predicted seconds of a call of each case that was looked at, or None without a prediction.
    `unpredicted` are the kernels, and their strategies, that lack a prediction for a case. `refusals` are the reasons
    against cases that are not valid on the device, whose kind is `cpu` or `cuda`. `is_nominal` says that a CPU without
    measurements counts as two quiet cores.
    """

    cases: int
    calls: tuple[float | None, ...]
    kernels: int
    unpredicted: tuple[str, ...]
    refusals: tuple[str, ...]
    is_shared: bool = False
    device: str = "cuda"
    is_nominal: bool = False

    @property
    def predicted(self) -> int:
        """Number of cases with a prediction, of those that were looked at."""
        return sum(each is not None for each in self.calls)

    @cached_property
    def seconds(self) -> float | None:
        """Predicted seconds of the run. Cases without a prediction count like the others. None without any."""
        known = [case_seconds(each, self.device, is_shared=self.is_shared) for each in self.calls if each is not None]
        if not known:
            return None
        looked = len(self.calls) + len(self.refusals)
        return (
            sum(known) / len(known) * len(self.calls) / looked * self.cases + _COSTS[self.device].kernel * self.kernels
        )

    @property
    def sentence(self) -> str:
        """The duration and the cases without a prediction, in a sentence or two."""
        some = ", ".join(self.unpredicted[:_NAMED]) + ", …" * (len(self.unpredicted) > _NAMED)
        if self.seconds is None:
            return f"The run time is not estimated: no measurement of {some} is like these cases." if some else ""
        count = f"{self.cases} cases" if self.cases > 1 else "1 case"
        if self.is_nominal:
            return f"{count}: about {in_words(self.seconds)} on two quiet cores"
        said = f"{count}: about {in_words(self.seconds)}, from {in_words(self.seconds / WITHIN)} to "
        said += in_words(self.seconds * WITHIN)
        if len(self.calls) + len(self.refusals) < self.cases:
            said += f", by {len(self.calls) + len(self.refusals)} of them"
        lacking = len(self.calls) - self.predicted
        return said + (f". {lacking} without a prediction count like the others: {some}" if lacking else "")


def in_words(seconds: float) -> str:
    """A duration in words: `40 s`, `12 min` or `3 h 20 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def case_seconds(call: float, device: str, *, is_shared: bool = False) -> float:
    """The seconds of a case."""
    costs = _COSTS[device]
    samples = min(costs.samples, max(_LEAST, math.ceil(_BUDGET / call)))
    return (costs.shared if is_shared else costs.case) + costs.checked * call * (_WARM_UP + samples)


def duration_of(cases: Sequence[Case], device: Device, registry: Registry) -> Duration:
    """The predicted duration of cases, without those of kernels for other devices.

    Links between hosts count like links within a host.
    """
    cases = list(itertools.filterfalse(is_elsewhere(registry, device), cases))
    calls: list[float | None] = []
    unpredicted, refusals = dict[str, None](), list[str]()
    knows, end = is_measured(cases, device), time.monotonic() + _PATIENCE
    for case in itertools.takewhile(lambda _: time.monotonic() < end, _some(cases)):
        try:
            calls.append(_call(case, device, registry) if knows else _nominal(case, device, registry))
        except UnsupportedError as error:
            refusals.append(str(error))
            continue
        if calls[-1] is None:
            shared = f" with {case.parallel.strategy}" if case.parallel else ""
            unpredicted.setdefault(case.kernel + shared)
    kernels = len({case.kernel for case in cases})
    is_shared = any(case.parallel is not None for case in cases)
    about = len(cases), tuple(calls), kernels, tuple(unpredicted), tuple(refusals), is_shared, device.kind
    return Duration(*about, is_nominal=not knows)


def is_measured(cases: Iterable[Case], device: Device) -> bool:
    """Whether there is evidence of a kernel of some cases on a device. No mask is drawn for this."""
    known = sources().costs.kernels_on(evidence_name(device))
    return any(known.issuperset(singles(kernel)) for kernel in {case.kernel for case in cases})


def _some(cases: Sequence[Case]) -> list[Case]:
    """Cases of all lengths, in random order. Masks that differ by head take long to draw, and come with all cases."""
    dice = random.Random(0)
    groups = [list(group) for _, group in itertools.groupby(cases, _drawn_together)]
    groups = sorted(dice.sample(groups, len(groups)), key=lambda group: group[0].seqlen)
    count = min(len(groups), max(1, len(groups) * _MOST // max(1, len(cases))))
    chosen = [groups[(2 * at + 1) * len(groups) // (2 * count)] for at in range(count)]
    return list(itertools.chain.from_iterable(dice.sample(chosen, count)))


def _drawn_together(case: Case) -> Any:
    """The key of the cases that are predicted together: their mask, or nothing."""
    if not get_pattern(case.pattern).per_head:
        return case
    return case.pattern, case.seqlen, case.lengths, case.seed, case.heads_kv, case.factors


def _call(case: Case, device: Device, registry: Registry) -> float | None:
    """The predicted seconds of a case's call, or None without evidence."""
    problem, training = case.problem(device), case.direction == Direction.BACKWARD
    request = Request(problem, training, registry, sources().costs, None, (case.kernel,), anywhere=False)
    halves = split(case.kernel) or (case.kernel,) * 2
    if case.parallel is not None:
        return _shared(case.kernel, halves[: len(request.directions)], case.parallel, request)
    verdict = request.resolve(case.kernel, problem).check()
    offer = (verdict.halves[-1] if verdict.halves else verdict).offer
    if offer is None:
        return None
    call = Call(work_of(problem.concrete_mask, offer.form), problem.heads_q, problem.num_heads_kv)
    found = request.costs.estimate(request.key(halves[training], case.direction), call)
    return None if found is None else found.seconds


def _nominal(case: Case, device: Device, registry: Registry) -> float | None:
    """The seconds of a case's call on a CPU that nobody measured. None on a GPU, and for ranks."""
    if device.kind != "cpu" or case.parallel is not None:
        return None
    problem = case.problem(device)
    registry.resolve(case.kernel, problem).check()
    return problem.flops / _CPU_RATE


def _shared(kernel: str, halves: Sequence[str], parallel: Parallel, request: Request) -> float | None:
    """The seconds of a call on several ranks, by the tiles of the whole mask."""
    manifest = request.registry.strategy(parallel.strategy)
    placement = manifest.placements[0] if parallel.placement == AUTO else parallel.placement
    layout = request.registry.layout(parallel.strategy, request.problem, parallel.axis_sizes, placement)
    request.resolve(kernel, request.problem, layout).check()
    costs = LayoutCosts(request, sources().links(request.device_name, layout.world_size), layout)
    try:
        found = candidate_of(costs, halves, exactly=False)
    except UnsupportedError:  # the time of a collective is unknown
        return None
    return None if found is None else found.timelines[-1].seconds
