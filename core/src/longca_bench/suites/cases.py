"""Cases: a suite expanded on a device, one case for each kernel, mask, shape and direction, and strategy if it has any.

A case is identified by a hash of what is measured on what; its mask is drawn when it is needed, from the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

from longca.errors import RequestError, UnknownNameError
from longca.manifests import Device, Problem, StrategyManifest
from longca.manifests.offers import DType
from longca.manifests.pairs import split
from longca.manifests.problem import Direction
from longca.masks import PATTERNS, Mask, get_pattern, sample
from longca.masks.mask import check_seqlen
from longca_bench.suites.parallel_cases import Parallel, check_ranks, check_selected, check_strategies, parallels
from longca_bench.suites.providers import how_to_get
from longca_bench.suites.suite import Suite, Sweep, Value

__all__ = ["MOST_CASES", "Case", "Selection", "absent", "expand"]

#: More cases than anyone waits for: a slip of the hand in a suite.
MOST_CASES = 100_000

#: What messages call each of a selection's attributes.
_NOUNS = {
    "kernels": "kernel",
    "patterns": "mask",
    "seqlens": "length",
    "directions": "direction",
    "heads": "heads",
    "seeds": "seed",
    "strategies": "strategy",
    "placements": "placement",
}


@dataclass(frozen=True)
class Case:
    """One measurement to make.

    Attributes:
        kernel: Name of the kernel or of a pair.
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
        parallel: How ranks share it; None on one device.
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
    parallel: Parallel | None = None

    def digest(self, device: str) -> str:
        """16 hex digits of what is measured on what."""
        about = asdict(self)
        if self.parallel is None:  # which cases did not have when the first records were made
            del about["parallel"]
        text = json.dumps([about, device], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def mask(self) -> Mask:
        """The case's mask, drawn from its seed."""
        same = replace(self, kernel="", dtype="float32", direction=Direction.FORWARD, head_dim=1, heads_q=1)
        return _mask(replace(same, parallel=None))

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
        seqlens: Lengths: where sweeps of the suite list one, it is kept in those alone; else every sweep takes it.
        directions: Directions to keep.
        heads: Query heads and KV heads to keep, such as `64:8`.
        seeds: Seeds to keep.
        strategies: Strategies to keep.
        placements: Placements to take instead of the suite's.
    """

    kernels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    seqlens: tuple[int, ...] = ()
    directions: tuple[Direction, ...] = ()
    heads: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()


def expand(
    suite: Suite,
    kernels: Iterable[str],
    selection: Selection = Selection(),
    *,
    strategies: Mapping[str, StrategyManifest] = MappingProxyType({}),
    ranks: int | None = None,
) -> list[Case]:
    """The suite's cases, each once, ordered so that those that share a mask and inputs come together.

    Kernels and strategies that the suite lists, says the distribution of and does not find are left out; `absent` names
    them. In a job of ranks it is the sweeps with strategies that are expanded, and without one the others.

    Args:
        suite: The suite.
        kernels: Names of all kernels there are.
        selection: What narrows it.
        strategies: All strategies there are.
        ranks: Ranks of the job; None without one.

    Raises:
        UnknownNameError: The suite or the selection names a kernel, strategy, placement or pattern that nobody
            provides, or the selection a kernel, pattern or heads that the suite does not have.
        MaskError: A selected length that no mask has.
        RequestError: A selected kernel is not installed, strategies or placements are selected of sweeps without,
            nothing is left, or there are more than MOST_CASES.
    """
    known = tuple(kernels)
    check_ranks(suite.name, suite.sweep, ranks)
    check_selected(suite, ranks, selection.strategies, selection.placements)
    sweeps = [sweep for sweep in suite.sweep if bool(sweep.strategies) == (ranks is not None)]
    _check(suite, known, selection)
    check_strategies(suite, strategies, selection.strategies, selection.placements)
    cases: dict[Case, None] = {}
    listed = {seqlen for sweep in sweeps for seqlen in sweep.lengths_on(ranks or 1)}
    ways = [
        [None]
        if ranks is None
        else list(parallels(sweep, strategies, ranks, selection.strategies, selection.placements))
        for sweep in sweeps
    ]
    pairs = zip(sweeps, ways, strict=True)
    for case in (case for sweep, way in pairs for case in _cases(sweep, known, selection, listed, way)):
        cases[case] = None
        if len(cases) > MOST_CASES:
            raise RequestError(
                f"suite {suite.name} has more than {MOST_CASES} cases; narrow its sweeps, or select with --kernel, "
                "--mask, --seqlen and --direction"
            )
    if not cases and not absent(suite, (*known, *strategies), selection):
        raise RequestError(_nothing_left(suite, selection))
    return list(cases)


def _nothing_left(suite: Suite, selection: Selection) -> str:
    """Why a selection leaves no case, and what to do about it; of what was not selected, nothing."""
    chosen = {_NOUNS[name]: values for name, values in vars(selection).items() if values}
    if not chosen:
        return f"suite {suite.name} has no case for the kernels and strategies that are here; see longca plugins"
    words = ", ".join(f"{noun} {' or '.join(map(str, values))}" for noun, values in chosen.items())
    how = " together; leave out one of them" if len(chosen) > 1 else "; leave it out"
    seeds = sorted({seed for sweep in suite.sweep for seed in sweep.seeds})
    hint = f". Its seeds: {', '.join(map(str, seeds))}" if selection.seeds else ""
    return f"no sweep of suite {suite.name} has {words}{how}{hint}"


def absent(suite: Suite, kernels: Iterable[str], selection: Selection = Selection()) -> dict[str, str]:
    """What `expand` leaves out because nobody provides it here, each name with what to do about it.

    Args:
        suite: The suite.
        kernels: Names of all kernels there are, and of all strategies.
        selection: What narrows the suite.
    """
    known = set(kernels)
    wanted = [(name, selection.kernels) for sweep in suite.sweep for name in sweep.kernels]
    wanted += [(name, selection.strategies) for sweep in suite.sweep for name in sweep.strategies]
    kept = [name for name, selected in wanted if not selected or name in selected]
    missing = dict.fromkeys(name for name in _single(kept) if name not in known)
    return {name: how_to_get(suite.distributions[name]) for name in missing if name in suite.distributions}


def _check(suite: Suite, known: tuple[str, ...], selection: Selection) -> None:
    """Refuses names that lead nowhere."""
    for name in _single(selection.kernels):
        if name not in known and name in suite.distributions:
            raise RequestError(f"kernel {name!r} is not here: {how_to_get(suite.distributions[name])}")
    listed = _single(name for sweep in suite.sweep for name in sweep.kernels if name != "*")
    for name in (*_single(selection.kernels), *(name for name in listed if name not in suite.distributions)):
        if name not in known:
            raise UnknownNameError("kernel", name, known)
    for name in selection.patterns:
        get_pattern(name)
    for seqlen in selection.seqlens:
        check_seqlen(seqlen)
    pairs = {name for sweep in suite.sweep for name in sweep.kernels if "+" in name}
    selected = _single(name for name in selection.kernels if name not in pairs)
    _check_listed(suite, "kernel", selected, (sweep.kernels for sweep in suite.sweep))
    _check_listed(suite, "mask pattern", selection.patterns, (sweep.patterns for sweep in suite.sweep))
    _check_listed(suite, "heads", selection.heads, (sweep.heads for sweep in suite.sweep))


def _check_listed(suite: Suite, kind: str, selected: Iterable[str], lists: Iterable[Iterable[str]]) -> None:
    """Refuses what no sweep of a suite lists."""
    listed = {name for names in lists for name in names}
    for name in selected:
        if name not in listed and "*" not in listed:
            raise UnknownNameError(f"{kind} of suite {suite.name}", name, listed)


def _cases(
    sweep: Sweep,
    known: tuple[str, ...],
    selection: Selection,
    listed: set[int],
    ways: Sequence[Parallel | None],
) -> Iterator[Case]:
    patterns = _picked(sweep.patterns, tuple(PATTERNS), selection.patterns)
    kernels = _kernels(sweep, known, selection.kernels)
    directions = [d for d in sweep.directions if not selection.directions or d in selection.directions]
    lengths = sweep.lengths_on(next((way.world_size for way in ways if way is not None), 1))
    taken = [n for n in selection.seqlens if n in lengths or n not in listed]
    for seqlen, (pattern, factors), seed, heads, head_dim, dtype, kernel, way, direction in product(
        taken if selection.seqlens else lengths,
        [(name, _frozen(given)) for name in patterns for given in sweep.factor_sets(name)],
        [seed for seed in sweep.seeds if not selection.seeds or seed in selection.seeds],
        _picked(sweep.heads, (), selection.heads),
        sweep.head_dims,
        sweep.dtypes,
        kernels,
        ways,
        directions,
    ):
        heads_q, heads_kv = map(int, heads.split(":"))
        about = (sweep.lengths, seed, heads_q, heads_kv, head_dim, dtype, direction, factors, way)
        yield Case(kernel, pattern, seqlen, *about)


def _kernels(sweep: Sweep, known: tuple[str, ...], selected: tuple[str, ...]) -> list[str]:
    """A sweep's kernels that are here, and the selected pairs of them."""
    listed = [*(known if "*" in sweep.kernels else ()), *(name for name in sweep.kernels if name != "*")]
    pairs = [name for name in selected if "+" in name and set(_single([name])) <= set(listed)]
    names = dict.fromkeys(name for name in (*listed, *pairs) if set(_single([name])) <= set(known))
    return [name for name in names if not selected or name in selected]


def _single(names: Iterable[str]) -> list[str]:
    """Names of kernels, with each pair's two kernels in its place."""
    return [single for name in names for single in split(name) or (name,)]


def _picked(listed: tuple[str, ...], known: tuple[str, ...], selected: tuple[str, ...]) -> list[str]:
    """What a sweep lists, or everything known for its `*`, as far as it is selected."""
    names = known if "*" in listed else listed
    return [name for name in names if not selected or name in selected]


def _frozen(factors: dict[str, Value]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in factors.items()))
