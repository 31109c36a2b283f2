"""What a case has beyond a kernel and a problem where several ranks compute it: strategy, placement and mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from longca.errors import RequestError, UnknownNameError
from longca.manifests import StrategyManifest
from longca_bench.suites.providers import how_to_get
from longca_bench.suites.suite import Suite, Sweep

__all__ = ["AUTO", "Parallel", "check_ranks", "check_selected", "check_strategies", "equal_mesh", "parallels"]

AUTO = "auto"


@dataclass(frozen=True)
class Parallel:
    """How the ranks of a job share a case.

    Attributes:
        strategy: Name of the strategy.
        placement: How it places tokens on ranks; `auto` for what is likely to be quickest with the kernel.
        mesh: Ranks along each of its axes, as (axis, ranks) pairs, the outermost first.
    """

    strategy: str
    placement: str
    mesh: tuple[tuple[str, int], ...]

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return prod(ranks for _, ranks in self.mesh)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Ranks along each axis, by its name."""
        return dict(self.mesh)

    @property
    def mesh_text(self) -> str:
        """The mesh as records have it: `ring=2,ulysses=2`."""
        return ",".join(f"{axis}={ranks}" for axis, ranks in self.mesh)


def parallels(
    sweep: Sweep,
    strategies: Mapping[str, StrategyManifest],
    ranks: int,
    wanted: Sequence[str] = (),
    placements: Sequence[str] = (),
) -> Iterator[Parallel]:
    """What a sweep has of strategies, meshes and placements on so many ranks.

    Args:
        sweep: The sweep.
        strategies: Those there are.
        ranks: Ranks of the job.
        wanted: Strategies to keep; empty for all.
        placements: Placements to take instead of the sweep's; empty for the sweep's.
    """
    names = tuple(strategies) if "*" in sweep.strategies else sweep.strategies
    for name in (name for name in names if name in strategies and (not wanted or name in wanted)):
        axes = strategies[name].axes
        listed = [_mesh(text, axes) for text in sweep.meshes.get(name, ())]
        fitting = [mesh for mesh in listed if prod(size for _, size in mesh) == ranks]
        for mesh in fitting or [tuple(zip(axes, equal_mesh(ranks, len(axes)), strict=True))]:
            for placement in _placements(sweep, strategies[name], placements):
                yield Parallel(name, placement, mesh)


def _mesh(text: str, axes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """A mesh of axes; by their names in any order, else in theirs.

    Raises:
        RequestError: It is of other axes.
    """
    sizes = text.split("x")
    if "=" in text:
        pairs = [(name, int(size)) for name, size in (part.split("=") for part in text.split(","))]
    else:
        pairs = [(axis, int(size)) for axis, size in zip(axes, sizes, strict=False)] if len(sizes) == len(axes) else []
    if sorted(name for name, _ in pairs) != sorted(axes):
        raise RequestError(f"mesh {text!r} does not have a size for each of {', '.join(axes)}")
    return tuple(pairs)


def equal_mesh(ranks: int, axes: int) -> tuple[int, ...]:
    """Ranks split into axes that are as equal as can be, the largest innermost, where ranks are of one node."""
    sizes = [1] * axes
    for prime in sorted(_primes(ranks), reverse=True):
        sizes[sizes.index(min(sizes))] *= prime
    return tuple(sorted(sizes))


def check_ranks(suite: str, sweeps: Sequence[Sweep], ranks: int | None) -> None:
    """Refuses a suite for several ranks on one device, and the other way about.

    Raises:
        RequestError: No sweep of the suite is for as many.
    """
    parallel = [bool(sweep.strategies) for sweep in sweeps]
    if ranks is None and all(parallel):
        raise RequestError(f"suite {suite} is for several ranks: give --nproc, or start longca run under torchrun")
    if ranks is not None and not any(parallel):
        raise RequestError(f"suite {suite} has no strategies, which is what ranks run; leave out --nproc and torchrun")


def check_selected(suite: Suite, ranks: int | None, wanted: Sequence[str], placements: Sequence[str]) -> None:
    """Refuses strategies and placements that are selected where what is measured has none.

    Args:
        suite: The suite.
        ranks: Ranks of the job; None without one.
        wanted: Strategies that were selected.
        placements: Placements that were.

    Raises:
        RequestError: There are some, and there is no job.
    """
    given = " and ".join(name for name, chosen in (("--strategy", wanted), ("--placement", placements)) if chosen)
    if not given or ranks is not None:
        return
    if any(sweep.strategies for sweep in suite.sweep):
        raise RequestError(f"{given}: strategies need several ranks; give --nproc, or start longca run under torchrun")
    raise RequestError(f"no sweep of suite {suite.name} has strategies; leave out {given}, or take a suite that has")


def check_strategies(
    suite: Suite, strategies: Mapping[str, StrategyManifest], wanted: Sequence[str], placements: Sequence[str]
) -> None:
    """Refuses strategies, placements and meshes that lead nowhere.

    Args:
        suite: The suite, whose own are checked too.
        strategies: Those there are.
        wanted: Strategies that were selected.
        placements: Placements that were.

    Raises:
        UnknownNameError: A strategy that nobody provides, or a placement that no strategy has.
        RequestError: A selected strategy is not installed, or a mesh is of other axes than its strategy's.
    """
    listed = (name for sweep in suite.sweep for name in sweep.strategies)
    for name in (*wanted, *listed):
        if name not in strategies and name != "*":
            if name not in suite.distributions:
                raise UnknownNameError("strategy", name, strategies)
            if name in wanted:
                raise RequestError(f"strategy {name!r} is not here: {how_to_get(suite.distributions[name])}")
    _check_sweeps(suite.sweep, strategies)
    known = {AUTO, *(placement for manifest in strategies.values() for placement in manifest.placements)}
    for placement in placements:
        if placement not in known:
            raise UnknownNameError("placement", placement, known)


def _check_sweeps(sweeps: Sequence[Sweep], strategies: Mapping[str, StrategyManifest]) -> None:
    """Refuses what sweeps say of meshes and placements."""
    for sweep in sweeps:
        names = tuple(strategies) if "*" in sweep.strategies else sweep.strategies
        here = [strategies[name] for name in names if name in strategies]
        for manifest in here:
            for text in sweep.meshes.get(manifest.name, ()):
                _mesh(text, manifest.axes)
        known = {AUTO, *(placement for manifest in here for placement in manifest.placements)}
        for placement in sweep.placements:
            if here and placement not in known:
                raise UnknownNameError("placement", placement, known)


def _placements(sweep: Sweep, manifest: StrategyManifest, selected: Sequence[str]) -> list[str]:
    """A strategy's placements in a sweep. Where it has but one, that is also what `auto` comes to."""
    names = selected or sweep.placements
    known = (AUTO, *manifest.placements)
    found = [name for name in known if name in names]
    return found[:1] if len(manifest.placements) == 1 else found


def _primes(number: int) -> Iterator[int]:
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            yield divisor
            number //= divisor
        divisor += 1
    if number > 1:
        yield number
