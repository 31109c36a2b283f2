"""Selections: filters for a suite, and the refusal of names that lead nowhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from longca.adviser import AUTO
from longca.errors import RequestError, UnknownNameError
from longca.limits import check_tokens
from longca.manifests import StrategyManifest, installed_version
from longca.manifests.pairs import singles
from longca.manifests.problem import Direction
from longca.masks import get_pattern
from longca.masks.mask import check_seqlen
from longca_advice.known_plugins import install_of
from longca_bench.suites.meshes import mesh_of
from longca_bench.suites.suite import Suite, Sweep

__all__ = ["Selection", "absent", "check", "halves", "nothing_left", "strategies_of"]

#: The word for each attribute of a selection in messages.
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

_Strategies = Mapping[str, StrategyManifest]


@dataclass(frozen=True)
class Selection:
    """Filters for a suite. An empty tuple keeps every case.

    If no sweep of the suite lists a length, every sweep takes it. Placements stand in for the suite's. `pairs` adds all
    valid pairs of the kept kernels, in direction backward.
    """

    kernels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    seqlens: tuple[int, ...] = ()
    directions: tuple[Direction, ...] = ()
    heads: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()
    pairs: bool = False

    @property
    def parallel(self) -> dict[str, tuple[str, ...]]:
        """The filters that only ranks have, by their options."""
        return {"--strategy": self.strategies, "--placement": self.placements}


def halves(names: Iterable[str]) -> list[str]:
    """Names of kernels, with the kernels of each pair in its place."""
    return [single for name in names for single in singles(name)]


def strategies_of(sweep: Sweep, strategies: _Strategies) -> list[StrategyManifest]:
    """The strategies of a sweep that somebody provides here."""
    names = strategies if "*" in sweep.strategies else sweep.strategies
    return [strategies[name] for name in names if name in strategies]


def absent(suite: Suite, known: Iterable[str], selection: Selection = Selection()) -> dict[str, str]:
    """The selected kernels and strategies of a suite that nobody provides here, each with the remedy."""
    here = set(known)
    wanted = [(name, selection.kernels) for sweep in suite.sweep for name in sweep.kernels]
    wanted += [(name, selection.strategies) for sweep in suite.sweep for name in sweep.strategies]
    kept = [name for name, selected in wanted if not selected or name in selected]
    missing = dict.fromkeys(name for name in halves(kept) if name not in here)
    return {name: _remedy(suite.distributions[name]) for name in missing if name in suite.distributions}


def nothing_left(suite: Suite, selection: Selection) -> str:
    """The reason why a selection leaves no case, with a remedy. It names only selected values."""
    chosen = {noun: values for name, noun in _NOUNS.items() if (values := getattr(selection, name))}
    if not chosen:
        return f"suite {suite.name} has no case for the kernels and strategies that are here; see longca plugins"
    words = ", ".join(f"{noun} {' or '.join(map(str, values))}" for noun, values in chosen.items())
    how = " together; leave out one of them" if len(chosen) > 1 else "; leave it out"
    seeds = sorted({seed for sweep in suite.sweep for seed in sweep.seeds})
    hint = f". Its seeds: {', '.join(map(str, seeds))}" if selection.seeds else ""
    return f"no sweep of suite {suite.name} has {words}{how}{hint}"


def check(
    suite: Suite, kernels: tuple[str, ...], strategies: _Strategies, selection: Selection, ranks: int | None
) -> None:
    """Refuses a suite and a selection with names that lead nowhere, or that do not go with the ranks."""
    _check_ranks(suite, selection, ranks)
    if selection.pairs and selection.directions and Direction.BACKWARD not in selection.directions:
        raise RequestError("pairs are measured in direction backward; leave out --pairs, or --direction forward")
    listed = [name for sweep in suite.sweep for name in sweep.kernels]
    _check_here(suite, "kernel", halves(selection.kernels), halves(listed), kernels)
    _check_here(
        suite, "strategy", selection.strategies, [n for sweep in suite.sweep for n in sweep.strategies], strategies
    )
    for name in selection.patterns:
        get_pattern(name)
    for seqlen in selection.seqlens:
        check_tokens(check_seqlen(seqlen))
    selected = halves(name for name in selection.kernels if name not in listed)
    _check_listed(suite, "kernel", selected, listed)
    _check_listed(suite, "mask pattern", selection.patterns, [n for sweep in suite.sweep for n in sweep.patterns])
    _check_listed(suite, "heads", selection.heads, [heads for sweep in suite.sweep for heads in sweep.heads])
    _check_placements(selection.placements, strategies.values())
    for sweep in suite.sweep:
        here = strategies_of(sweep, strategies)
        if here:
            _check_placements(sweep.placements, here)
        for manifest in here:
            for text in sweep.meshes.get(manifest.name, ()):
                mesh_of(text, manifest.axes)


def _check_ranks(suite: Suite, selection: Selection, ranks: int | None) -> None:
    """Refuses a suite for ranks on one device, and the other way round."""
    parallel = [bool(sweep.strategies) for sweep in suite.sweep]
    given = " and ".join(name for name, values in selection.parallel.items() if values)
    start = "give --gpus, or start longca run under torchrun"
    if ranks is not None:
        if not any(parallel):
            raise RequestError(f"suite {suite.name} has no strategies to run on ranks; leave out --gpus and torchrun")
    elif all(parallel):
        raise RequestError(f"suite {suite.name} is for several ranks: {start}")
    elif given and any(parallel):
        raise RequestError(f"{given}: strategies need several ranks; {start}")
    elif given:
        raise RequestError(
            f"no sweep of suite {suite.name} has strategies; leave out {given}, or take a suite that has some"
        )


def _check_here(
    suite: Suite, kind: str, selected: Iterable[str], listed: Iterable[str], known: Collection[str]
) -> None:
    """Refuses selected names that nobody provides here, and listed ones unless the suite names their distribution."""
    for name in selected:
        if name not in known and name in suite.distributions:
            raise RequestError(f"{kind} {name!r} is not here: {_remedy(suite.distributions[name])}")
    for name in (*selected, *listed):
        if name not in known and name not in suite.distributions and name != "*":
            raise UnknownNameError(kind, name, known)


def _check_listed(suite: Suite, kind: str, selected: Iterable[str], listed: Collection[str]) -> None:
    """Refuses names that no sweep of a suite lists."""
    for name in selected:
        if name not in listed and "*" not in listed:
            raise UnknownNameError(f"{kind} of suite {suite.name}", name, set(listed))


def _check_placements(wanted: Iterable[str], strategies: Iterable[StrategyManifest]) -> None:
    known = {AUTO, *(name for manifest in strategies for name in manifest.placements)}
    for name in wanted:
        if name not in known:
            raise UnknownNameError("placement", name, known)


def _remedy(distribution: str) -> str:
    """The remedy if a distribution does not provide its kernel or strategy here."""
    if installed_version(distribution) is None:
        return f"{distribution} is not installed. Install it: {install_of([distribution])}"
    return f"{distribution} is installed, but does not provide it here; `longca plugins` says why"
