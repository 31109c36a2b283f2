"""Verdicts: valid and by which offer, or the reasons why not."""

from __future__ import annotations

from dataclasses import dataclass

from longca.errors import UnsupportedError
from longca.manifests.offers import Offer

__all__ = ["Reason", "Verdict"]


@dataclass(frozen=True)
class Reason:
    """Why a combination is not valid.

    Attributes:
        code: What it is about, one word: form, device, dtype, head_dim, gqa, direction, deterministic, lengths,
            mask_heads, package, composition, layout or plugin.
        asked: What was asked.
        offered: What is offered.
        advice: What to do about it.
    """

    code: str
    asked: str
    offered: str
    advice: str = ""

    def __str__(self) -> str:
        sentence = f"{self.offered}; {self.asked}."
        return f"{sentence} {self.advice}" if self.advice else sentence


@dataclass(frozen=True)
class Verdict:
    """Whether a kernel takes a problem.

    Attributes:
        kernel: The kernel's name.
        offer: The offer that covers the problem; None where there is none, for a pair, and under a layout, whose steps
            may use several (see `offers`).
        reasons: Why not; empty where it is valid.
        offers: All offers that a layout's steps or a pair's halves use.
        halves: Of a pair, the verdicts of its forward and its backward half; in a forward, of the first alone.
    """

    kernel: str
    offer: Offer | None = None
    reasons: tuple[Reason, ...] = ()
    offers: tuple[Offer, ...] = ()
    halves: tuple[Verdict, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reasons

    @property
    def rough_lse(self) -> bool:
        """Whether the offer, or any that a layout's steps use, says that its log-sum-exp is rough."""
        if self.halves:
            return self.halves[0].rough_lse
        return any(offer.rough_lse for offer in (self.offer, *self.offers) if offer is not None)

    @property
    def form(self) -> str:
        """The forms of its offers as records have them, such as `layers + row_intervals` of a pair; empty of none."""
        if self.halves:
            return " + ".join(dict.fromkeys(half.form for half in self.halves))
        return ", ".join(dict.fromkeys(str(offer.form) for offer in (self.offer, *self.offers) if offer is not None))

    def is_by(self, offer: Offer) -> bool:
        """Whether an offer covers the problem: of a pair in direction `backward`, an offer of its backward half."""
        return self.halves[-1].is_by(offer) if self.halves else self.offer is offer

    def __bool__(self) -> bool:
        return self.valid

    def check(self, alternatives: tuple[str, ...] = ()) -> Verdict:
        """The verdict itself, where it is valid.

        Args:
            alternatives: Kernels to name as valid for the same problem.

        Raises:
            UnsupportedError: It is not; the message gives the reasons.
        """
        if self.valid:
            return self
        hint = f" Valid here: {', '.join(alternatives)}." if alternatives else ""
        raise UnsupportedError(" ".join(str(reason) for reason in self.reasons) + hint)
