"""Outcomes: the predictions for a problem's choices before their measurement, and the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from longca_advice.choices import Choice, Unmeasured
from longca_bench.measuring.records import Record

__all__ = ["MeasuredChoice", "Outcome", "Timed"]

_FROZEN = ConfigDict(frozen=True)  # the JSON form has more, which follows from the rest


class Timed(BaseModel):
    """Predicted and measured time of one direction, or of both together.

    Attributes:
        predicted: Predicted seconds, or None without evidence.
        low: Lower end of the 90 % interval of the time, or None if no interval is known.
        high: Upper end of the same interval.
        case: Hash of the case that measures it, or None for both directions together.
        status: The record's status, or None before there is a record.
        measured: Measured seconds, or None if nothing was measured.
    """

    model_config = _FROZEN

    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    case: str | None = None
    status: str | None = None
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """How much longer the prediction is than the measurement, as a share of the measurement."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the interval, or None if one of them is unknown."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    def as_json(self) -> dict[str, Any]:
        """The times as plain data."""
        return {**self.model_dump(mode="json"), "error": self.error, "inside": self.inside}


class MeasuredChoice(BaseModel):
    """A kernel, or a kernel under a strategy, that is to be measured.

    Attributes:
        kernel: The kernel, or the pair.
        strategy: The context-parallel strategy. None on one device, like `placement` and `mesh`.
        placement: The token placement, or None for the one that is predicted to be fastest.
        mesh: Ranks along each of its axes, or None for an equal split.
        times: Times by direction, and as `total` for all directions together.
        notes: The evidence behind the prediction, in sentences.
    """

    model_config = _FROZEN

    kernel: str
    strategy: str | None = None
    placement: str | None = None
    mesh: str | None = None
    times: dict[str, Timed] = {}
    notes: tuple[str, ...] = ()

    @classmethod
    def of_choice(cls, choice: Choice) -> MeasuredChoice:
        """A recommended choice, with its prediction."""
        seconds, proof = choice.seconds, choice.proof
        found = {"forward": seconds.forward, "backward": seconds.backward}
        times = {name: Timed(predicted=value) for name, value in found.items() if value is not None}
        for name, (low, high) in zip(times, seconds.intervals, strict=False):
            times[name] = times[name].model_copy(update={"low": low, "high": high})
        times["total"] = Timed(predicted=seconds.total, low=seconds.low, high=seconds.high)
        if seconds.backward is None:
            times["forward"] = times["total"]
        outside = (f"outside the evidence: {text}" for text in proof.outside)
        rests = f"{proof.learnt}; most alike is {proof.nearest}"
        return cls(
            kernel=choice.kernel,
            strategy=choice.strategy,
            placement=choice.placement,
            mesh=choice.mesh,
            times=times,
            notes=(rests, *outside, *proof.versions, *proof.notes),
        )

    @classmethod
    def of_unmeasured(cls, one: Unmeasured, directions: tuple[str, ...]) -> MeasuredChoice:
        """A kernel without evidence, without a prediction."""
        times = {name: Timed() for name in (*directions, "total")}
        return cls(kernel=one.kernel, strategy=one.strategy, times=times, notes=(one.why,))

    @property
    def title(self) -> str:
        """The kernel, and how ranks share the work, in a few words."""
        if self.strategy is None:
            return self.kernel
        shared = ", ".join(part for part in (self.mesh, self.placement) if part)
        return f"{self.kernel} with {self.strategy}{f' ({shared})' if shared else ''}"

    @property
    def measured(self) -> float | None:
        """Measured seconds of all directions, or None if one of them has no time."""
        return self.times["total"].measured

    def with_records(self, records: Mapping[str, Record]) -> MeasuredChoice:
        """The choice with its measurements.

        Args:
            records: Records by their case.
        """
        times = {name: _measured(time, records) for name, time in self.times.items() if name != "total"}
        found = [time.measured for time in times.values()]
        known = [seconds for seconds in found if seconds is not None]
        total = sum(known) if len(known) == len(found) else None
        times["total"] = self.times["total"].model_copy(update={"measured": total})
        return self.model_copy(update={"times": times})

    def as_json(self) -> dict[str, Any]:
        """The choice as plain data."""
        times = {name: time.as_json() for name, time in self.times.items()}
        return {**self.model_dump(mode="json", exclude={"times"}), "title": self.title, "times": times}


def _measured(time: Timed, records: Mapping[str, Record]) -> Timed:
    record = records.get(time.case or "")
    if record is None:
        return time
    measured = record.median if record.status == "ok" else None
    return time.model_copy(update={"status": record.status, "measured": measured})


class Outcome(BaseModel):
    """A problem's recommendation, compared with its measurements.

    Attributes:
        problem: The problem, as plain data.
        device: The device of the prediction and the measurement.
        ranks: Devices that share the problem.
        asked: Number of requested choices.
        ranked: Whether evidence ranks the choices. If not, they are in the order of the plugins.
        ways: The choices that are measured, the recommended one first.
        left_out: Choices that are not installed here, each with the commands that install it.
        notes: Further remarks on the evidence, in sentences.
    """

    model_config = _FROZEN

    problem: dict[str, Any]
    device: str
    ranks: int
    asked: int
    ranked: bool
    ways: tuple[MeasuredChoice, ...]
    left_out: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    @property
    def fastest(self) -> MeasuredChoice | None:
        """The choice that was measured as fastest, or None if no choice has all its times."""
        measured = [choice for choice in self.ways if choice.measured is not None]
        return min(measured, key=lambda choice: choice.measured or 0.0, default=None)

    @property
    def regret(self) -> float | None:
        """How much longer the first choice took than the fastest one, as a share.

        None where the choices are not ranked, or the first has no time.
        """
        fastest, first = self.fastest, self.ways[0].measured
        if not self.ranked or first is None or fastest is None or fastest.measured is None:
            return None
        return first / fastest.measured - 1

    def with_records(self, records: Mapping[str, Record]) -> Outcome:
        """The outcome with its measurements.

        Args:
            records: Records by their case.
        """
        return self.model_copy(update={"ways": tuple(choice.with_records(records) for choice in self.ways)})

    def as_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        fastest = self.fastest
        return {
            **self.model_dump(mode="json", exclude={"ways"}),
            "ways": [choice.as_json() for choice in self.ways],
            "fastest": None if fastest is None else fastest.title,
            "regret": self.regret,
        }
