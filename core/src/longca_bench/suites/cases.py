"""Cases: a suite expanded into one case for each kernel, mask, shape and direction, and strategy if it has any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, permutations, product
from math import prod
from types import MappingProxyType
from typing import Any

from longca.adviser import AUTO
from longca.errors import RequestError
from longca.limits import check_tokens
from longca.manifests import StrategyManifest, Transport
from longca.manifests.pairs import join, singles, split
from longca.manifests.problem import Direction
from longca.masks import PATTERNS
from longca_bench.suites.case import Case, Parallel
from longca_bench.suites.meshes import fitting_meshes
from longca_bench.suites.selection import Selection, absent, check, halves, nothing_left, strategies_of
from longca_bench.suites.suite import Suite, Sweep, Value

__all__ = ["MOST_CASES", "Selection", "absent", "expand"]

#: More cases than anyone waits for. A suite with more has a mistake.
MOST_CASES = 100_000


def expand(
    suite: Suite,
    kernels: Iterable[str],
    selection: Selection = Selection(),
    *,
    strategies: Mapping[str, StrategyManifest] = MappingProxyType({}),
    ranks: int | None = None,
    takes: Callable[[Case], bool] | None = None,
) -> list[Case]:
    """The suite's cases, each once. Cases that share a mask and inputs come together.

    A sweep with `pairs` has its kernels and each valid pair of two of them. Such a pair has cases in direction backward
    alone, because its forward is a case of its first kernel.

    A job of ranks takes the sweeps with strategies, and one device takes the others. Kernels and strategies that are
    not installed are left out if the suite names their distribution. `absent` lists them.

    Args:
        suite: The suite.
        kernels: Names of all kernels.
        selection: The filters.
        strategies: All strategies.
        ranks: Ranks of the job, or None on one device.
        takes: Whether the pair of a case is valid (see `longca_bench.suites.tasks.takes`). None adds no pairs.

    Raises:
        UnknownNameError: Nobody provides a kernel, strategy, placement or pattern, or the suite lacks a selected name.
        MaskError: No mask can have a selected length.
        RequestError: A selected kernel is not installed, the suite or the selection does not go with the ranks, no case
            is left, or there are more than MOST_CASES. They are counted before they are made, and before invalid pairs
            are left out.
    """
    known = tuple(kernels)
    check(suite, known, strategies, selection, ranks)
    sweeps = [sweep for sweep in suite.sweep if bool(sweep.strategies) == (ranks is not None)]
    listed = {check_tokens(seqlen) for sweep in sweeps for seqlen in sweep.lengths_on(ranks or 1)}
    matrices = [_matrix(sweep, known, selection, listed, strategies, ranks, takes) for sweep in sweeps]
    if (count := sum(matrix.count for matrix in matrices)) > MOST_CASES:
        raise RequestError(
            f"suite {suite.name} has {count} cases; at most {MOST_CASES} are allowed. Narrow its sweeps, or select "
            "with --kernel, --mask, --seqlen and --direction"
        )
    cases = dict.fromkeys(case for matrix in matrices for case in matrix.cases())
    if not cases and not absent(suite, (*known, *strategies), selection):
        raise RequestError(nothing_left(suite, selection))
    return list(cases)


@dataclass(frozen=True)
class _Matrix:
    """The combinations that a sweep and a selection ask for. They are counted before they are made.

    Attributes:
        sweep: The sweep.
        patterns: The selected patterns.
        axes: The values of all dimensions but the mask: lengths, seeds, heads, head dims, dtypes, and calls. A call is
            a kernel, a way in which ranks share a case, and a direction. Each value is listed once.
        added: Names of the pairs that the sweep does not list.
        takes: Whether the pair of a case is valid.
    """

    sweep: Sweep
    patterns: tuple[str, ...]
    axes: tuple[tuple[Any, ...], ...]
    added: frozenset[str]
    takes: Callable[[Case], bool] | None

    @property
    def count(self) -> int:
        """Number of combinations."""
        return sum(map(self.sweep.count_factor_sets, self.patterns)) * prod(map(len, self.axes))

    def cases(self) -> Iterator[Case]:
        """The case of each combination, without invalid pairs that were added."""
        lengths, *others = self.axes
        masks = [(name, _frozen(given)) for name in self.patterns for given in self.sweep.factor_sets(name)]
        for seqlen, (pattern, factors), seed, heads, head_dim, dtype, call in product(lengths, masks, *others):
            kernel, parallel, direction = call
            heads_q, heads_kv = map(int, heads.split(":"))
            about = (self.sweep.lengths, seed, heads_q, heads_kv, head_dim, dtype, direction, factors, parallel)
            case = Case(kernel, pattern, seqlen, *about)
            if kernel not in self.added or (self.takes is not None and self.takes(case)):
                yield case


def _matrix(
    sweep: Sweep,
    known: tuple[str, ...],
    selection: Selection,
    listed: set[int],
    strategies: Mapping[str, StrategyManifest],
    ranks: int | None,
    takes: Callable[[Case], bool] | None,
) -> _Matrix:
    kernels = _kernels(sweep, known, selection.kernels)
    added = [] if takes is None else _added_pairs(sweep, kernels, selection)
    kernels = [name for name in kernels if name not in added]
    parallels = [None] if ranks is None else list(_parallels(sweep, strategies, ranks, selection))
    directions = [d for d in sweep.directions if not selection.directions or d in selection.directions]
    backward = [d for d in directions if d == Direction.BACKWARD]
    lengths = sweep.lengths_on(ranks or 1)
    taken = [n for n in selection.seqlens if n in lengths or n not in listed]
    axes: tuple[Iterable[Any], ...] = (
        taken if selection.seqlens else lengths,
        [seed for seed in sweep.seeds if not selection.seeds or seed in selection.seeds],
        _picked(sweep.heads, (), selection.heads),
        sweep.head_dims,
        sweep.dtypes,
        chain(product(kernels, parallels, directions), product(added, parallels, backward)),
    )
    patterns = dict.fromkeys(_picked(sweep.patterns, tuple(PATTERNS), selection.patterns))
    unique = tuple(tuple(dict.fromkeys(axis)) for axis in axes)
    return _Matrix(sweep, tuple(patterns), unique, frozenset(added), takes)


def _parallels(
    sweep: Sweep, strategies: Mapping[str, StrategyManifest], ranks: int, selection: Selection
) -> Iterator[Parallel]:
    """The strategies, meshes, placements and transports of a sweep on some ranks."""
    for manifest in strategies_of(sweep, strategies):
        if selection.strategies and manifest.name not in selection.strategies:
            continue
        for mesh in fitting_meshes(sweep.meshes.get(manifest.name, ()), manifest.axes, ranks):
            placements = _offered(manifest.placements, selection.placements or sweep.placements)
            transports = _offered(manifest.transports, selection.transports or sweep.transports)
            for placement, transport in product(placements, transports):
                yield Parallel(manifest.name, placement, mesh, Transport(transport))


def _offered(names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The wanted placements or transports of a strategy's. If it has only one, `auto` gives the same."""
    found = [name for name in (AUTO, *names) if name in wanted]
    return found[:1] if len(names) == 1 else found


def _kernels(sweep: Sweep, known: tuple[str, ...], selected: tuple[str, ...]) -> list[str]:
    """A sweep's kernels that are installed, and the selected pairs of them."""
    listed = [*(known if "*" in sweep.kernels else ()), *(name for name in sweep.kernels if name != "*")]
    pairs = [name for name in selected if singles(name) != (name,) and set(singles(name)) <= set(listed)]
    names = dict.fromkeys(name for name in (*listed, *pairs) if set(halves([name])) <= set(known))
    return [name for name in names if not selected or name in selected]


def _added_pairs(sweep: Sweep, kernels: list[str], selection: Selection) -> list[str]:
    """The pairs of a sweep's kernels that have a backward alone: the selected ones, or all if none is selected.

    The forward of a pair is a case of its first kernel. A selected pair without this case keeps its own forward.
    """
    alone = [name for name in kernels if singles(name) == (name,)]
    named = {name: pair for name in kernels if name not in sweep.kernels and (pair := split(name))}
    if sweep.pairs and named and not selection.pairs:
        return [name for name, (first, _) in named.items() if first in alone]
    if not (sweep.pairs or selection.pairs):
        return []
    return [name for halves in permutations(alone, 2) if (name := join(*halves)) not in kernels]


def _picked(listed: tuple[str, ...], known: tuple[str, ...], selected: tuple[str, ...]) -> list[str]:
    """The selected names of a sweep's list, in which `*` stands for all known names."""
    names = known if "*" in listed else listed
    return [name for name in names if not selected or name in selected]


def _frozen(factors: dict[str, Value]) -> tuple[tuple[str, int | float | tuple[int, ...]], ...]:
    return tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in factors.items()))
