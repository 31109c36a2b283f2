"""Choices: the parts of a recommendation, and its JSON form."""

from __future__ import annotations

import importlib
from dataclasses import asdict, dataclass
from typing import Any

from longca.manifests.pairs import join

__all__ = ["Choice", "Proof", "Recommendation", "Refused", "Seconds", "Unmeasured"]


@dataclass(frozen=True)
class Seconds:
    """Predicted seconds of a call.

    Attributes:
        forward: Seconds of the forward.
        backward: Seconds of the backward alone, or None without a backward.
        total: Seconds of all directions together.
        low: Lower end of the 90 % interval of the total. The upper end is `high`.
        intervals: The interval of each direction, the forward's first. Empty if only the total's is known.
        ranked: Seconds that the choice is ranked by: more than the total if the call was not measured.
    """

    forward: float
    backward: float | None
    total: float
    low: float
    high: float
    intervals: tuple[tuple[float, float], ...] = ()
    ranked: float | None = None


@dataclass(frozen=True)
class Proof:
    """The evidence behind a prediction: the number of measured calls that it is learnt from, and the most similar one.

    Attributes:
        outside: The properties of the problem that lie outside the evidence, in words.
        versions: The packages that are installed here in another version than the measured one, in words.
        notes: Further remarks in words, such as steps that were not checked.
    """

    records: int
    nearest: str
    outside: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def learnt(self) -> str:
        """The number of measured calls, in words."""
        return f"learnt from {self.records} measured call{'s' * (self.records != 1)}"

    @property
    def extrapolates(self) -> bool:
        """Whether the problem lies outside the evidence."""
        return bool(self.outside)


@dataclass(frozen=True)
class Choice:
    """One way to compute a problem.

    Attributes:
        forward: The kernel that computes the forward.
        backward: The kernel that computes the backward, or None without a backward.
        bytes_per_rank: Peak bytes of a call, on the rank that needs most.
        fits: Whether these bytes fit the device, or None if its memory is unknown.
        call: The line to paste.
        tflops: Floating-point operations a second and rank, in 10¹².
        strategy: The context-parallel strategy. None on one device, like `placement` and `mesh`.
        mesh: Ranks along each of its axes, such as `ring=2,ulysses=4`.
        install: Commands that install what is missing. Empty if nothing is missing, or if no command installs it here.
        lacks: The plugins and packages that are missing here, in words.
        unknown: Parts of the memory that no manifest states. They count as 0.
        unverified: Whether nobody verified one of its kernels on the device.
    """

    forward: str
    backward: str | None
    seconds: Seconds
    bytes_per_rank: int
    fits: bool | None
    proof: Proof
    call: str
    tflops: float
    strategy: str | None = None
    placement: str | None = None
    mesh: str | None = None
    install: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unverified: bool = False

    @property
    def kernel(self) -> str:
        """The name of the kernel, or of the pair."""
        return join(self.forward, self.backward or self.forward)

    @property
    def title(self) -> str:
        """The kernel, and how ranks share the work, in a few words."""
        return self.kernel if self.layout is None else f"{self.kernel} with {self.layout}"

    @property
    def layout(self) -> str | None:
        """How ranks share the work, in a few words. None on one device."""
        return None if self.strategy is None else f"{self.strategy} ({self.mesh}, {self.placement})"

    def as_json(self) -> dict[str, Any]:
        """The choice as plain data."""
        found = asdict(self)
        del found["unknown"]
        evidence = {**found.pop("proof"), "extrapolates": self.proof.extrapolates}
        return {**found, "evidence": evidence, **_install(self)}


@dataclass(frozen=True)
class Unmeasured:
    """A kernel, a pair or a strategy that is valid, but has no evidence of its speed, with the reason.

    `install` and `lacks` are as in `Choice`.
    """

    kernel: str
    why: str
    strategy: str | None = None
    install: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    unverified: bool = False

    def as_json(self) -> dict[str, Any]:
        """It as plain data."""
        return {**asdict(self), **_install(self)}


@dataclass(frozen=True)
class Refused:
    """A kernel or a strategy that cannot be used, the reasons against it, and a remedy.

    The kernel is None if a strategy is refused for every kernel. The strategy is None on one device.
    """

    kernel: str | None
    strategy: str | None
    reasons: tuple[str, ...]
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        """It as plain data."""
        return {**asdict(self), "advice": self.advice or None}


@dataclass(frozen=True)
class Recommendation:
    """The answer to: which kernel, which strategy, and will it fit?

    Attributes:
        problem: The problem, as plain data.
        ranks: Devices that share the problem.
        choices: The choices that fit, followed by the choices that do not fit. Both are ordered by `seconds.ranked`. A
            choice that goes beyond the measurements comes after the measured ones that its interval reaches.
        unmeasured: The valid choices without a prediction, in the order of the plugins. They are not ranked.
        notes: Further remarks, in sentences.
        why: Why the first choice leads the first one outside its interval, in a sentence, or empty.
        here: Whether the device is this machine's, so that the versions installed here matter.
    """

    problem: dict[str, Any]
    device: str
    ranks: int
    choices: tuple[Choice, ...]
    unmeasured: tuple[Unmeasured, ...] = ()
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()
    here: bool = True
    why: str = ""

    def __repr__(self) -> str:
        best = f"{self.best.title}, {self.best.seconds.total * 1e3:.3g} ms" if self.best else "nothing"
        return f"<Recommendation of {best} on {self.ranks} × {self.device}, {len(self.choices)} choices>"

    def __str__(self) -> str:
        """The text that `longca recommend` prints."""
        text: str = importlib.import_module("longca_bench.reports.recommendation").recommendation_text(self)
        return text

    @property
    def best(self) -> Choice | None:
        """The first choice that fits, or None if none fits."""
        first = next(iter(self.choices), None)
        return first if first is not None and first.fits is not False else None

    @property
    def ties(self) -> tuple[Choice, ...]:
        """Choices that may be as quick as the best one: their time lies within its interval."""
        best = self.best
        if best is None:
            return ()
        others = (choice for choice in self.choices[1:] if choice.fits is not False)
        return tuple(choice for choice in others if choice.seconds.total <= best.seconds.high)

    def as_json(self) -> dict[str, Any]:
        """The recommendation as plain data. The form is a contract."""
        return {
            "problem": self.problem,
            "device": self.device,
            "ranks": self.ranks,
            "choices": [choice.as_json() for choice in self.choices],
            "unmeasured": [one.as_json() for one in self.unmeasured],
            "refused": [one.as_json() for one in self.refused],
            "notes": list(self.notes),
            "why": self.why or None,
        }


def _install(one: Choice | Unmeasured) -> dict[str, Any]:
    return {"installed": not one.lacks, "install": " && ".join(one.install) or None}
