"""Cases: a suite expanded into one case for each kernel, mask, shape and direction, and strategy if it has any.

The hash of a case identifies it. Its mask is drawn from the seed when it is needed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import chain, permutations, product
from math import prod
from types import MappingProxyType
from typing import Any

from longca.errors import RequestError
from longca.limits import check_tokens
from longca.manifests import Device, Problem, StrategyManifest, Transport
from longca.manifests.mixes import singles
from longca.manifests.offers import DType
from longca.manifests.pairs import join, split
from longca.manifests.problem import Direction
from longca.masks import PATTERNS, Mask, sample
from longca_advice.auto_layout import AUTO
from longca_bench.suites.meshes import MeshAxes, fitting_meshes
from longca_bench.suites.selection import Selection, absent, check, halves, nothing_left, strategies_of
from longca_bench.suites.streams import Stream
from longca_bench.suites.suite import Suite, Sweep, Value

__all__ = ["MOST_CASES", "Case", "Parallel", "Selection", "absent", "expand"]

#: More cases than anyone waits for. A suite with more has a mistake.
MOST_CASES = 100_000


@dataclass(frozen=True)
class Parallel:
    """The way in which the ranks of a job share a case.

    Attributes:
        strategy: Name of the strategy.
        placement: The placement of tokens on ranks, or `auto` for the one that is predicted to be fastest.
        mesh: Ranks along each axis, as (axis, ranks) pairs, the outermost axis first.
        transport: The way to move tensors, or `auto` for the strategy's own choice.
    """

    strategy: str
    placement: str
    mesh: MeshAxes
    transport: Transport = Transport.AUTO

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return prod(ranks for _, ranks in self.mesh)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Ranks along each axis, by the axis's name."""
        return dict(self.mesh)

    @property
    def mesh_text(self) -> str:
        """The mesh as records have it: `ring=2,ulysses=2`."""
        return ",".join(f"{axis}={ranks}" for axis, ranks in self.mesh)


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        kernel: Name of the kernel or of a pair.
        pattern: The mask's pattern.
        seqlen: Tokens.
        lengths: The source of document lengths.
        seed: Seed of the mask and the inputs.
        heads_q: Query heads.
        heads_kv: Key and value heads.
        head_dim: Head dimension.
        dtype: Data type.
        direction: `forward` or `backward`.
        factors: Mask factors of the suite, as sorted (name, value) pairs.
        parallel: The way in which ranks share the case, or None on one device.
        allow_unverified: Whether an offer may run that nobody verified on the device. The case is the same.
        stream: The masks and the layers of training steps, or None for one mask. Steps have both directions.
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
    allow_unverified: bool = False
    stream: Stream | None = None

    def digest(self, device: str) -> str:
        """16 hex digits of the case on a device."""
        about = asdict(self)
        del about["allow_unverified"]
        if self.parallel is None:  # the first records were made before cases had this field
            del about["parallel"]
        elif self.parallel.transport is Transport.AUTO:  # nor did they have this
            del about["parallel"]["transport"]
        if self.stream is None:
            del about["stream"]
        text = json.dumps([about, device], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def mask(self) -> Mask:
        """The case's mask, drawn from its seed."""
        same = replace(self, kernel="", dtype="float32", direction=Direction.FORWARD, head_dim=1, heads_q=1)
        return _mask(replace(same, parallel=None, stream=None))

    def problem(self, device: Device) -> Problem:
        """The problem that the kernel gets."""
        return Problem(
            mask=self.mask,
            heads_q=self.heads_q,
            heads_kv=self.heads_kv,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=device,
            direction=self.direction,
            allow_unverified=self.allow_unverified,
        )


@lru_cache(maxsize=4)
def _mask(case: Case) -> Mask:
    """Masks of block-sparse patterns differ by KV head."""
    factors: dict[str, Any] = {"heads": case.heads_kv} if PATTERNS[case.pattern].per_head else {}
    return sample(case.pattern, case.seqlen, lengths=case.lengths, seed=case.seed, **{**factors, **dict(case.factors)})


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

    @property
    def stream(self) -> Stream | None:
        """The stream of each case, if the sweep asks for streams."""
        return Stream(self.sweep.stream, self.sweep.layers) if self.sweep.stream else None

    def cases(self) -> Iterator[Case]:
        """The case of each combination, without invalid pairs that were added."""
        lengths, *others = self.axes
        masks = [(name, _frozen(given)) for name in self.patterns for given in self.sweep.factor_sets(name)]
        for seqlen, (pattern, factors), seed, heads, head_dim, dtype, call in product(lengths, masks, *others):
            kernel, parallel, direction = call
            heads_q, heads_kv = map(int, heads.split(":"))
            about = (self.sweep.lengths, seed, heads_q, heads_kv, head_dim, dtype, direction, factors, parallel)
            case = Case(kernel, pattern, seqlen, *about, stream=self.stream)
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
    if sweep.stream:  # the problem of a step is that of the backward, which has the forward's plan too
        directions = [Direction.BACKWARD]
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
    """A sweep's kernels that are installed, and the selected pairs and mixes of them."""
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


def _frozen(factors: dict[str, Value]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, tuple(v) if isinstance(v, list) else v) for name, v in factors.items()))
