"""Refusals: the error about a kernel that does not take a problem, with the ways out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from longca.manifests import Layout, Problem, Verdict
from longca.manifests.offers import Offer
from longca.manifests.pairs import singles
from longca.plugins import Registry

__all__ = ["check_taken"]


def check_taken(registry: Registry, verdict: Verdict, problem: Problem, layout: Layout | None = None) -> None:
    """Checks a verdict.

    Raises:
        UnsupportedError: It is not valid. The message has the reasons, other kernels that take the problem, and the
            nearest head dimensions that the kernel takes, if the reason is another one of v.
    """
    if verdict:
        return
    others = tuple(name for name in registry.kernels if registry.resolve(name, problem, layout))
    if problem.head_dim_v is None or all(reason.code != "head_dim" for reason in verdict.reasons):
        verdict.check(others)
    offers = [offer for name in singles(verdict.kernel) for offer in registry.manifest(name).offers]
    padded = (replace(problem, head_dim=dim, head_dim_v=dim_v) for dim, dim_v in _wider(offers, *problem.dims))
    nearest = next((asked for asked in padded if registry.resolve(verdict.kernel, asked, layout)), None)
    verdict.check(others, "" if nearest is None else _padding(problem, nearest))


def _wider(offers: list[Offer], dim: int, dim_v: int) -> Iterator[tuple[int, int]]:
    """The head dimensions of q and k with those of v that some offer takes and that hold these, the smallest first."""
    widths = {dim, dim_v}
    for offer in offers:
        widths |= {-(-each // offer.head_dim_multiple) * offer.head_dim_multiple for each in (dim, dim_v)}
        for listed in offer.head_dims or ():
            widths |= {listed} if isinstance(listed, int) else set(listed)
    wider = [(a, b) for a, b in product(widths, repeat=2) if a >= dim and b >= dim_v]
    yield from sorted(filter(lambda each: any(offer.takes_dims(*each) for offer in offers), wider), key=sum)


def _padding(problem: Problem, nearest: Problem) -> str:
    (dim, dim_v), wider = problem.dims, nearest.dims
    pads = [f"{names} to {to}" for names, was, to in (("q and k", dim, wider[0]), ("v", dim_v, wider[1])) if was != to]
    scale = f", give softmax_scale={problem.scale:.6g}" if wider[0] != dim and problem.softmax_scale is None else ""
    out = f", and take the first {dim_v} numbers of each row of out" if wider[1] != dim_v else ""
    return (
        f"The nearest head dimensions that it takes are {nearest.dims_text}. Pad {' and '.join(pads)} with zeros"
        f"{scale}{out}."
    )
