"""Choices: what a recommendation consists of, and its JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from longca.manifests.pairs import join

__all__ = ["Choice", "Proof", "Recommendation", "Refused", "Seconds", "Unmeasured"]


@dataclass(frozen=True)
class Seconds:
    """Predicted seconds of a call.

    Attributes:
        forward: Of the forward.
        backward: Of the backward alone; None where none was asked for.
        total: Of both.
        low: Lower end of the interval that holds the total with 90 %.
        high: Upper end.
        intervals: The interval of each direction, the forward's first; empty where only the total's is known.
    """

    forward: float
    backward: float | None
    total: float
    low: float
    high: float
    intervals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Proof:
    """What a prediction rests on.

    Attributes:
        records: How many measured calls it is learnt from.
        nearest: The measured call that is most alike: its run and case.
        outside: In words, what lies outside the evidence.
        versions: In words, packages of which another version is installed here.
        notes: In words, what else is to be known, such as steps that were not checked.
    """

    records: int
    nearest: str
    outside: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def extrapolates(self) -> bool:
        """Whether the problem lies outside the evidence."""
        return bool(self.outside)


@dataclass(frozen=True)
class Choice:
    """One way to compute a problem.

    Attributes:
        forward: The kernel that computes the forward.
        backward: The kernel that computes the backward; None where none was asked for.
        seconds: The predicted time.
        bytes_per_rank: Bytes that a call takes at its peak, on the rank that needs most.
        fits: Whether they fit the device; None where its memory is not known.
        proof: What the prediction rests on.
        call: The line to paste.
        tflops: Floating-point operations a second and rank, in 10¹².
        strategy: The context-parallel strategy; None on one device, as the next two.
        placement: How it places tokens.
        mesh: Ranks along each of its axes, such as `ring=2,ulysses=4`.
        install: Commands that install what is missing here; empty where nothing is.
        unknown: Parts of the memory that nobody states, and that are counted as 0.
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
    unknown: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """The name of the kernel, or of the pair."""
        return join(self.forward, self.backward or self.forward)

    @property
    def title(self) -> str:
        """The kernel, and how ranks share the work, in a few words."""
        if self.strategy is None:
            return self.kernel
        return f"{self.kernel} with {self.strategy} ({self.mesh}, {self.placement})"

    def as_json(self) -> dict[str, Any]:
        """The choice as plain data."""
        proof = self.proof
        return {
            "forward": self.forward,
            "backward": self.backward,
            "strategy": self.strategy,
            "placement": self.placement,
            "mesh": self.mesh,
            "seconds": asdict(self.seconds),
            "tflops": self.tflops,
            "bytes_per_rank": self.bytes_per_rank,
            "fits": self.fits,
            "evidence": {
                "records": proof.records,
                "nearest": proof.nearest,
                "extrapolates": proof.extrapolates,
                "outside": list(proof.outside),
                "versions": list(proof.versions),
                "notes": list(proof.notes),
            },
            "call": self.call,
            "installed": not self.install,
            "install": " && ".join(self.install) or None,
        }


@dataclass(frozen=True)
class Unmeasured:
    """A kernel, or a strategy, that is valid, and of which no evidence says how quick it is.

    Attributes:
        kernel: The kernel, or the pair.
        why: Why there is no prediction.
        strategy: The strategy.
        install: Commands that install what is missing here.
    """

    kernel: str
    why: str
    strategy: str | None = None
    install: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """It as plain data."""
        return {
            "kernel": self.kernel,
            "strategy": self.strategy,
            "why": self.why,
            "installed": not self.install,
            "install": " && ".join(self.install) or None,
        }


@dataclass(frozen=True)
class Refused:
    """A kernel or a strategy that is not to be taken, and why.

    Attributes:
        kernel: The kernel; None where a strategy is refused whatever the kernel.
        strategy: The strategy; None on one device.
        reasons: Why not.
        advice: What to do about it.
    """

    kernel: str | None
    strategy: str | None
    reasons: tuple[str, ...]
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        """It as plain data."""
        return {
            "kernel": self.kernel,
            "strategy": self.strategy,
            "reasons": list(self.reasons),
            "advice": self.advice or None,
        }


@dataclass(frozen=True)
class Recommendation:
    """The answer to: which kernel, which strategy, and will it fit?

    Attributes:
        problem: What was asked, as plain data.
        device: What it was asked for.
        ranks: Devices that share the problem.
        choices: What fits, the quickest first; then what does not fit.
        unmeasured: What is valid without a prediction, in the order of the plugins. It is not ranked.
        refused: What is not valid, and why.
        notes: What else there is to know, in sentences.
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

    @property
    def best(self) -> Choice | None:
        """The quickest choice that fits; None where none does."""
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
        }
