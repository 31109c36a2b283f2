"""Mixes: kernels of which every step of a strategy takes the one that suits it best, named `one|other`. Torch-free.

Partial results merge by their log-sum-exps, so that steps may differ in their kernels. In training a step takes one
kernel for both directions, or a pair of the mix's kernels. Every step counts as one part of a larger softmax, and
takes verified offers alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from longca.errors import RequestError
from longca.manifests.pairs import split
from longca.manifests.problem import Problem

__all__ = ["asked_of_step", "is_mix", "kernels_of", "mix_of", "singles"]

#: The sign between the kernels of a mix.
SIGN = "|"


def is_mix(name: str) -> bool:
    """Whether a name is a mix's."""
    return SIGN in name


def kernels_of(name: str) -> tuple[str, ...]:
    """The kernels of a mix, or the name alone if it is no mix's.

    Args:
        name: The name of a kernel, of a pair, or of a mix such as `fa3|fa4`.

    Raises:
        RequestError: A kernel without a name, a pair, or one kernel twice.
    """
    if not is_mix(name):
        return (name,)
    kernels = tuple(name.split(SIGN))
    if not all(kernels) or "+" in name:
        raise RequestError(f"kernel {name!r} is no mix; name single kernels, such as fa3|fa4")
    if len(set(kernels)) < len(kernels):
        raise RequestError(f"kernel {name!r} names a kernel twice; name it once: {mix_of(kernels)}")
    return kernels


def mix_of(kernels: Iterable[str]) -> str:
    """The name of some kernels as a mix: of one kernel, its own name."""
    return SIGN.join(dict.fromkeys(kernels))


def singles(name: str) -> tuple[str, ...]:
    """Every single kernel of a kernel, of a pair or of a mix."""
    return kernels_of(name) if is_mix(name) else split(name) or (name,)


def asked_of_step(problem: Problem) -> Problem:
    """The problem that decides which kernels of a mix take a step."""
    return replace(problem, composed=True, allow_unverified=False)
