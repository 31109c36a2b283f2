"""Checks of the fields of a measured record against each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median as median_of
from typing import Any

from longca.limits import shown

__all__ = [
    "Findings",
    "check_times",
    "check_verified",
    "checked_communication",
    "checked_factors",
    "checked_findings",
    "checked_gpu",
    "checked_integers",
    "checked_machine",
]

#: Relative difference between a number and the same number computed from other fields.
_ROUNDING = 1e-6
#: Results that a verified case has findings of, by its direction. Some kernels give no log-sum-exp.
_RESULTS = {"forward": {"out"}, "backward": {"dq", "dk", "dv"}}
#: Types of a finding's error.
_ERRORS = (float, int, type(None))
#: The figures of one kind of collective.
_FIGURES = {"calls", "bytes", "seconds", "algbw", "busbw"}
#: Facts of a GPU and of a machine that are numbers.
_GPU_NUMBERS, _MACHINE_NUMBERS = ("sm_clock", "memory_clock", "power", "temperature"), ("waited", "measured")

Findings = tuple[dict[str, Any], ...]


def check_times(
    samples: Sequence[float], median: float | None, tflops: float | None, flops: int, ranks: int | None
) -> None:
    """Checks that the median is the median of the samples, and that the throughput is the throughput of the median.

    Args:
        samples: Seconds of each timed call.
        median: The median, or None without one.
        tflops: Throughput of each rank in 10¹² operations a second, or None without one.
        flops: Operations of the call.
        ranks: Number of ranks, or None on one device.

    Raises:
        ValueError: A number contradicts the others.
    """
    if median is None:
        if tflops is not None:
            raise ValueError("tflops is given without a median")
        return
    found = median_of(samples) if samples else math.nan
    if not math.isclose(median, found, rel_tol=_ROUNDING):
        raise ValueError(f"the median is {median}, and the median of the samples is {found}")
    reached = 1e-12 * flops / median / (ranks or 1)
    if tflops is not None and not math.isclose(tflops, reached, rel_tol=_ROUNDING):
        raise ValueError(f"tflops is {tflops}, and {flops} operations in {median} seconds are {reached}")


def check_verified(
    samples: Sequence[float], median: float | None, findings: Sequence[Mapping[str, Any]], direction: str
) -> None:
    """Checks that a record with the status `ok` was measured and verified.

    Args:
        samples: Seconds of each timed call.
        median: The median, or None without one.
        findings: The worst row of each verified tensor.
        direction: The direction. A step of a stream has findings of other names.

    Raises:
        ValueError: There is no time, or a finding that did not pass or is beyond its limit, or a tensor has none.
    """
    if not samples or median is None:
        raise ValueError("the status is ok, and there is no time; a verified case has samples and a median")
    if not findings:
        raise ValueError("the status is ok, and there are no findings; a verified case has one for each tensor")
    if lacking := _RESULTS.get(direction, set()) - {str(found.get("tensor")) for found in findings}:
        raise ValueError(f"the status is ok, and there is no finding of {min(lacking)}")
    if failed := [str(found.get("tensor")) for found in findings if found.get("passed") is not True]:
        raise ValueError(f"the status is ok, and the finding of {failed[0]} did not pass")
    for found in findings:
        error, limit = found.get("error"), found.get("limit")
        if error is not None and limit is not None and not error <= limit:
            raise ValueError(f"the finding of {found['tensor']} passed, and its error of {error} is beyond {limit}")


def checked_findings(findings: Findings) -> Findings:
    """Findings, if each says what reports read.

    Raises:
        ValueError: A finding does not name its tensor, its error, or whether it passed, or an integer is too large.
    """
    for found in findings:
        checked_integers(found)
        get = found.get
        if type(get("tensor")) is not str or type(get("passed")) is not bool or type(get("error", "")) not in _ERRORS:
            raise ValueError("a finding has a tensor, passed as true or false, and an error, which is a number or null")
        if type(get("limit")) not in _ERRORS:
            raise ValueError(f"the limit of a finding is a number, and not {shown(get('limit'))}")
    return findings


def checked_factors(factors: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mask's factors, if the kept share is a number.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(factors.get("kept", 0.0), int | float):
        raise ValueError(f"kept is a share of blocks, and not {shown(factors['kept'])}")
    return factors


def checked_communication(communication: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """The figures of collectives by kind, if each kind has all figures and `all` is there.

    Raises:
        ValueError: A figure or `all` is missing, or a kind has another figure.
    """
    for kind, figures in communication.items():
        if figures.keys() != _FIGURES:
            raise ValueError(f"{shown(kind)} has other figures than {', '.join(sorted(_FIGURES))}")
    if communication and "all" not in communication:
        raise ValueError("the figures of all collectives together are missing; they have the name all")
    return communication


def checked_gpu(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """A GPU's state, if its clocks, power and temperature are numbers and its throttle reasons are texts.

    Raises:
        ValueError: One is not, or an integer is too large.
    """
    _check_numbers(checked_integers(state) or {}, _GPU_NUMBERS)
    reasons = (state or {}).get("throttle", [])
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise ValueError(f"throttle is a list of reasons, and not {shown(reasons)}")
    return state


def checked_machine(noise: dict[str, Any] | None) -> dict[str, Any] | None:
    """A machine's noise, if it says whether the machine was busy and why, and how long it was waited for.

    Raises:
        ValueError: It does not, or an integer is too large.
    """
    found = checked_integers(noise) or {}
    if found and (type(found.get("busy")) is not bool or type(found.get("why")) is not str):
        raise ValueError("the noise of a machine has busy as true or false, and why, which is a text")
    if len(there := found.keys() & _MACHINE_NUMBERS) == 1:
        raise ValueError(f"waited and measured are given together, and {there.pop()} is alone")
    _check_numbers(found, _MACHINE_NUMBERS)
    return noise


def _check_numbers(facts: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name in facts and (isinstance(facts[name], bool) or not isinstance(facts[name], int | float)):
            raise ValueError(f"{name} is a number, and not {shown(facts[name])}")


def checked_integers(value: Any) -> Any:
    """A nested value, if each of its integers fits into 64 bits, as in tables.

    Raises:
        ValueError: One does not.
    """
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            checked_integers(part)
    if isinstance(value, int) and value.bit_length() > 63:
        raise ValueError(f"{shown(value)} does not fit into 64 bits")
    return value
