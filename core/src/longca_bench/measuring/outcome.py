"""Outcomes: the predictions for a problem's choices before their measurement, and the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, computed_field, field_serializer

from longca_advice.choices import Choice, Unmeasured
from longca_bench.measuring.records import Record

__all__ = ["MeasuredChoice", "Outcome", "Timed"]

_FROZEN = ConfigDict(frozen=True)  # the JSON form has more, which follows from the rest


class Timed(BaseModel):
    """Predicted and measured seconds of a direction, or of both together, with the 90 % interval and a case's hash.

    `busy` says whether the machine was busy meanwhile.
    """

    model_config = _FROZEN

    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    case: str | None = None
    status: str | None = None
    measured: float | None = None
    busy: bool = False

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error(self) -> float | None:
        """How much longer the prediction is than the measurement, as a share of the measurement."""
        if self.predicted is None or self.measured is None:
            return None
        return self.predicted / self.measured - 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def inside(self) -> bool | None:
        """Whether the measurement lies in the interval, or None if one of them is unknown."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    def with_record(self, records: Mapping[str, Record]) -> Timed:
        """The time with the measurement of its case, if there is one."""
        if (record := records.get(self.case or "")) is None:
            return self
        measured = record.median if record.status == "ok" else None
        return self.model_copy(update={"status": record.status, "measured": measured, "busy": bool(record.busy)})


class MeasuredChoice(BaseModel):
    """A kernel, or a kernel under a strategy, that is to be measured, with the evidence behind its prediction.

    It has times by direction, and as `total` for all directions together. No placement is the one that is predicted to
    be fastest, and no mesh an equal split.
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
        notes = (f"{proof.learnt}; most alike is {proof.nearest}", *outside, *proof.versions, *proof.notes)
        about = {name: getattr(choice, name) for name in ("kernel", "strategy", "placement", "mesh")}
        return cls(**about, times=times, notes=notes)

    @classmethod
    def of_unmeasured(cls, one: Unmeasured, directions: tuple[str, ...]) -> MeasuredChoice:
        """A kernel without evidence, without a prediction."""
        times = {name: Timed() for name in (*directions, "total")}
        return cls(kernel=one.kernel, strategy=one.strategy, times=times, notes=(one.why,))

    @computed_field  # type: ignore[prop-decorator]
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
        """The choice with the measurements of its cases."""
        times = {name: time.with_record(records) for name, time in self.times.items() if name != "total"}
        found = [time.measured for time in times.values() if time.measured is not None]
        total = sum(found) if len(found) == len(times) else None
        busy = any(time.busy for time in times.values())
        times["total"] = self.times["total"].model_copy(update={"measured": total, "busy": busy})
        return self.model_copy(update={"times": times})


class Outcome(BaseModel):
    """A problem's recommendation, compared with its measurements.

    `ways` are the choices that are measured, the recommended one first. Without `ranked` no evidence ranks them, and
    they are in the order of the plugins. `left_out` has the commands that install the choices that are missing here.
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
    def busy(self) -> bool:
        """Whether the machine was busy while a choice was timed."""
        return any(choice.times["total"].busy for choice in self.ways)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fastest(self) -> MeasuredChoice | None:
        """The choice that was measured as fastest. None without all its times, or if one of several was busy."""
        measured = [choice for choice in self.ways if choice.measured is not None]
        if len(measured) > 1 and self.busy:
            return None
        return min(measured, key=lambda choice: choice.measured or 0.0, default=None)

    @field_serializer("fastest")
    def _title(self, fastest: MeasuredChoice | None) -> str | None:
        return None if fastest is None else fastest.title

    @computed_field  # type: ignore[prop-decorator]
    @property
    def regret(self) -> float | None:
        """How much longer the first of ranked choices took than the fastest one, as a share. None without its time."""
        fastest, first = self.fastest, self.ways[0].measured
        if not self.ranked or first is None or fastest is None or fastest.measured is None:
            return None
        return first / fastest.measured - 1

    def with_records(self, records: Mapping[str, Record]) -> Outcome:
        """The outcome with the measurements of its cases."""
        return self.model_copy(update={"ways": tuple(choice.with_records(records) for choice in self.ways)})
