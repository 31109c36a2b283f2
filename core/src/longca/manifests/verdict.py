"""Verdicts: valid with an offer, or not valid with reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longca.errors import UnsupportedError
from longca.manifests.offers import Offer

__all__ = ["Reason", "Verdict", "paragraph"]


@dataclass(frozen=True)
class Reason:
    """A reason why a combination is not valid.

    Attributes:
        code: Its subject in one word: form, device, unverified, dtype, head_dim, softcap, gqa, direction,
            deterministic, lengths, mask_heads, package, composition, sinks, layout or plugin.
        asked: The request, as a clause.
        offered: The offer, as a clause.
        advice: A sentence on the way out, or an empty text.
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
        offer: The offer that covers the problem. None without one, for a pair, and for steps of several offers.
        reasons: The reasons against it. Empty if it is valid.
        offers: All offers that a layout's steps or a pair's halves use.
        halves: The verdicts on a pair's forward and backward half. In a forward, the first verdict alone.
        unverified: Whether nobody verified one of its offers on the device, and `allow_unverified` lets it run.
    """

    kernel: str
    offer: Offer | None = None
    reasons: tuple[Reason, ...] = ()
    offers: tuple[Offer, ...] = ()
    halves: tuple[Verdict, ...] = ()
    unverified: bool = False

    @property
    def valid(self) -> bool:
        """Whether no reason speaks against it."""
        return not self.reasons

    @property
    def rough_lse(self) -> bool:
        """Whether the log-sum-exp of any used offer is rough."""
        if self.halves:
            return self.halves[0].rough_lse
        return any(offer.rough_lse for offer in (self.offer, *self.offers) if offer is not None)

    @property
    def optional_lse(self) -> bool:
        """Whether the offer of its forward may give no log-sum-exp. The offers of a layout give one."""
        if self.halves:
            return self.halves[0].optional_lse
        return self.offer is not None and self.offer.optional_lse

    @property
    def form(self) -> str:
        """The forms of its offers as in records, such as `layers + row_intervals` for a pair. Empty without offers."""
        if self.halves:
            return " + ".join(dict.fromkeys(half.form for half in self.halves))
        return ", ".join(dict.fromkeys(str(offer.form) for offer in (self.offer, *self.offers) if offer is not None))

    def is_by(self, offer: Offer) -> bool:
        """Whether an offer covers the problem. Of a valid pair in direction `backward` its backward half decides."""
        return self.valid and self.halves[-1].is_by(offer) if self.halves else self.offer is offer

    def __bool__(self) -> bool:
        return self.valid

    def check(self, alternatives: tuple[str, ...] = (), advice: str = "") -> Verdict:
        """Returns the verdict if it is valid.

        Raises:
            UnsupportedError: It is not valid. The message gives the reasons, the alternatives, which are other valid
                kernels, and the advice.
        """
        if self.valid:
            return self
        hint = [f"Valid here: {', '.join(alternatives)}."] if alternatives else []
        raise UnsupportedError(paragraph([*self.reasons, *hint, *filter(None, [advice])]))


def paragraph(sentences: Iterable[object]) -> str:
    """Reasons and other sentences as one text.

    Advice may end in a command to copy, so a reason may lack its full stop. Here each gets one but the last.
    """
    *before, last = list(map(str, sentences)) or [""]
    return " ".join([*(f"{sentence.removesuffix('.')}." for sentence in before), last])
