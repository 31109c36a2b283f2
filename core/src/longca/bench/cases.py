"""Cases: a suite expanded on a device, one case for each kernel, mask, shape and direction.

A case is identified by a hash of what is measured on what; its mask is drawn when it is needed, from the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from longca.bench.suite import Suite, Sweep
from longca.errors import RequestError, UnknownNameError
from longca.manifests import Device, Problem
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import PATTERNS, Mask, get_pattern, sample
from longca.masks.mask import check_seqlen

__all__ = ["MOST_CASES", "Case", "Selection", "expand"]

#: More cases than anyone waits for: a slip of the hand in a suite.
MOST_CASES = 100_000


@dataclass(frozen=True)
class Case:
    """One measurement to make.

    Attributes:
        kernel: Name of the kernel.
        pattern: The mask's pattern.
        seqlen: Tokens.
        lengths: Where document lengths come from.
        seed: Seed of mask and inputs.
        heads_q: Query heads.
        heads_kv: Key and value heads.
        head_dim: Head dimension.
        dtype: Data type.
        direction: `forward` or `backward`.
        factors: Mask factors given by the suite, as sorted (name, value) pairs.
    """

    kernel: str
    pattern: str
    seqlen: int
    lengths: str
    seed: int
    heads_q: int
    heads_kv: int
    head_dim: int
    dtype: DType
    direction: Direction
    factors: tuple[tuple[str, Any], ...] = ()

    def digest(self, device: str) -> str:
        """16 hex digits of what is measured on what."""
        text = json.dumps([asdict(self), device], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def mask(self) -> Mask:
        """The case's mask, drawn from its seed."""
        return _mask(replace(self, kernel="", dtype="float32", direction="forward", head_dim=1, heads_q=1))

    def problem(self, device: Device) -> Problem:
        """What the case asks of its kernel."""
        return Problem(
            mask=self.mask,
            heads_q=self.heads_q,
            heads_kv=self.heads_kv,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=device,
            direction=self.direction,
        )


@lru_cache(maxsize=4)
def _mask(case: Case) -> Mask:
    """Masks of block-sparse patterns differ by KV head."""
    factors: dict[str, Any] = {"heads": case.heads_kv} if PATTERNS[case.pattern].per_head else {}
    return sample(case.pattern, case.seqlen, lengths=case.lengths, seed=case.seed, **{**factors, **dict(case.factors)})


@dataclass(frozen=True)
class Selection:
    """What narrows a suite; an empty tuple narrows nothing.

    Attributes:
        kernels: Kernels to keep.
        patterns: Patterns to keep.
        seqlens: Lengths to take instead of the suite's.
        directions: Directions to keep.
    """

    kernels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    seqlens: tuple[int, ...] = ()
    directions: tuple[Direction, ...] = ()


def expand(suite: Suite, kernels: Iterable[str], selection: Selection = Selection()) -> list[Case]:
    """The suite's cases, each once, ordered so that those that share a mask and inputs come together.

    Args:
        suite: The suite.
        kernels: Names of all kernels there are.
        selection: What narrows it.

    Raises:
        UnknownNameError: The suite or the selection names a kernel or pattern that nobody provides.
        MaskError: A selected length that no mask has.
        RequestError: There are more than MOST_CASES.
    """
    known = tuple(kernels)
    for name in (*selection.kernels, *(k for sweep in suite.sweep for k in sweep.kernels if k != "*")):
        if name not in known:
            raise UnknownNameError("kernel", name, known)
    for name in selection.patterns:
        get_pattern(name)
    for seqlen in selection.seqlens:
        check_seqlen(seqlen)
    cases: dict[Case, None] = {}
    for case in (case for sweep in suite.sweep for case in _cases(sweep, known, selection)):
        cases[case] = None
        if len(cases) > MOST_CASES:
            raise RequestError(
                f"suite {suite.name} has more than {MOST_CASES} cases; narrow its sweeps, or select with --kernel, "
                "--mask, --seqlen and --direction"
            )
    return list(cases)


def _cases(sweep: Sweep, known: tuple[str, ...], selection: Selection) -> Iterator[Case]:
    patterns = _picked(sweep.patterns, tuple(PATTERNS), selection.patterns)
    kernels = _picked(sweep.kernels, known, selection.kernels)
    directions = [d for d in sweep.directions if not selection.directions or d in selection.directions]
    for seqlen, pattern, seed, heads, head_dim, dtype, kernel, direction in product(
        selection.seqlens or sweep.seqlens,
        patterns,
        sweep.seeds,
        sweep.heads,
        sweep.head_dims,
        sweep.dtypes,
        kernels,
        directions,
    ):
        heads_q, heads_kv = map(int, heads.split(":"))
        factors = tuple(sorted((k, _frozen(v)) for k, v in sweep.factors.get(pattern, {}).items()))
        yield Case(kernel, pattern, seqlen, sweep.lengths, seed, heads_q, heads_kv, head_dim, dtype, direction, factors)


def _picked(listed: tuple[str, ...], known: tuple[str, ...], selected: tuple[str, ...]) -> list[str]:
    names = known if "*" in listed else listed
    return [name for name in names if not selected or name in selected]


def _frozen(value: int | float | list[int]) -> Any:
    return tuple(value) if isinstance(value, list) else value
