"""A problem that a kernel's manifest covers, to ask its plugin's hooks about."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from longca.manifests import Device, KernelManifest, Offer, Problem
from longca.manifests.resolve import resolve_anywhere
from longca.masks import PATTERNS

__all__ = ["sample_problem"]

_DEVICES = (Device("cpu"), *(Device("cuda", capability) for capability in ((9, 0), (8, 0), (10, 0), (12, 0))))


def sample_problem(manifest: KernelManifest) -> Problem | None:
    """A problem that an offer of a kernel covers, with a pattern for its mask. None if no pattern fits."""
    problems = (problem for offer in manifest.offers for problem in _problems(offer))
    return next((problem for problem in problems if resolve_anywhere(manifest, problem)), None)


def _problems(offer: Offer) -> Iterator[Problem]:
    head_dim = (offer.head_dims or (offer.head_dim_multiple,))[0]
    for device, pattern in product(_DEVICES, PATTERNS.values()):
        yield Problem(
            mask=pattern,
            heads_q=4,
            head_dim=head_dim,
            dtype=offer.dtypes[0],
            device=device,
            direction=offer.directions[0],
            backward_only=not offer.forward,
            allow_unverified=True,
        )
