"""Cases: a suite expanded into one case for each kernel, mask, shape and direction, and strategy if it has any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from longca.parsing import parse_head_dim
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
    """
    known = tuple(kernels)
    check(suite, known, strategies, selection, ranks)
    sweeps = [sweep for sweep in suite.sweep if bool(sweep.strategies) == (ranks is not None)]
    listed = {check_tokens(seqlen) for sweep in sweeps for seqlen in sweep.lengths_on(ranks or 1)}
    matrices = [
        (sweep, *_matrix(sweep, known, selection, listed, strategies, ranks, pairs=takes is not None))
        for sweep in sweeps
    ]
    count = sum(sum(map(sweep.count_factor_sets, names)) * prod(map(len, axes)) for sweep, names, axes, _ in matrices)
    if count > MOST_CASES:
        raise RequestError(
            f"suite {suite.name} has {count} cases; at most {MOST_CASES} are allowed. Narrow its sweeps, or select "
            "with --kernel, --mask, --seqlen and --direction"
        )
    cases = dict.fromkeys(
        case
        for sweep, names, axes, added in matrices
        for case in _cases(sweep, names, axes)
        if case.kernel not in added or (takes is not None and takes(case))
    )
    if not cases and not absent(suite, (*known, *strategies), selection):
        raise RequestError(nothing_left(suite, selection))
    return list(cases)


def _cases(sweep: Sweep, patterns: Iterable[str], axes: Sequence[Iterable[Any]]) -> Iterator[Case]:
    """The case of each combination of masks and of values of the other axes."""
    lengths, *others = axes
    masks = [(name, _frozen(given)) for name in patterns for given in sweep.factor_sets(name)]
    for seqlen, (pattern, factors), seed, heads, head_dim, dtype, call in product(lengths, masks, *others):
        kernel, parallel, direction = call
        heads_q, heads_kv = map(int, heads.split(":"))
        dim, dim_v = parse_head_dim(str(head_dim))
        about = (sweep.lengths, seed, heads_q, heads_kv, dim, dtype, direction, factors, parallel)
        yield Case(kernel, pattern, seqlen, *about, head_dim_v=dim_v, softcap=sweep.softcap, sinks=sweep.sinks)


def _matrix(
    sweep: Sweep,
    known: tuple[str, ...],
    selection: Selection,
    listed: set[int],
    strategies: Mapping[str, StrategyManifest],
    ranks: int | None,
    *,
    pairs: bool,
) -> tuple[list[str], list[list[Any]], list[str]]:
    """The selected patterns of a sweep, the values of its other axes, and the pairs that it does not list.

    The axes are lengths, seeds, heads, head dims, dtypes, and calls: a kernel, a way in which ranks share a case, and a
    direction. Each value is listed once.
    """
    kernels = _kernels(sweep, known, selection.kernels)
    added = _added_pairs(sweep, kernels, selection) if pairs else []
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
    return list(patterns), [list(dict.fromkeys(axis)) for axis in axes], added


def _parallels(
    sweep: Sweep, strategies: Mapping[str, StrategyManifest], ranks: int, selection: Selection
) -> Iterator[Parallel]:
    """The strategies, meshes, placements and transports of a sweep on some ranks."""
    for manifest in strategies_of(sweep, strategies):
        if selection.strategies and manifest.name not in selection.strategies:
            continue
        for mesh in fitting_meshes(sweep.meshes.get(manifest.name, ()), manifest.axes, ranks):
            placements = _offered(manifest.placements, selection.placements or sweep.placements)
            transports = _offered(manifest.transports, sweep.transports)
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
