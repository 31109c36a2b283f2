"""Selections: filters for a suite, and the refusal of names that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from longca.adviser import AUTO
from longca.errors import RequestError, UnknownNameError
from longca.limits import check_tokens
from longca.manifests import StrategyManifest, installed_version
from longca.manifests.pairs import singles
from longca.manifests.problem import Direction
from longca.masks import get_pattern
from longca.masks.mask import check_seqlen
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
    "transports": "transport",
}

_Strategies = Mapping[str, StrategyManifest]


@dataclass(frozen=True)
class Selection:
    """Filters for a suite. An empty tuple keeps every case.

    Attributes:
        kernels: Kernels to keep.
        patterns: Mask patterns to keep.
        seqlens: Lengths to keep. If no sweep of the suite lists a length, every sweep takes it.
        directions: Directions to keep.
        heads: Query heads and KV heads to keep, such as `64:8`.
        seeds: Seeds to keep.
        strategies: Strategies to keep.
        placements: Placements to take instead of the suite's.
        transports: Transports to take instead of the suite's.
        pairs: Whether to add all valid pairs of the kept kernels, in direction backward.
    """

    kernels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    seqlens: tuple[int, ...] = ()
    directions: tuple[Direction, ...] = ()
    heads: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ()
    placements: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()
    pairs: bool = False

    @property
    def parallel(self) -> dict[str, tuple[str, ...]]:
        """The filters that only ranks have, by their options."""
        return {"--strategy": self.strategies, "--placement": self.placements, "--transport": self.transports}


def halves(names: Iterable[str]) -> list[str]:
    """Names of kernels, with the kernels of each pair in its place."""
    return [single for name in names for single in singles(name)]


def strategies_of(sweep: Sweep, strategies: _Strategies) -> list[StrategyManifest]:
    """The strategies of a sweep that somebody provides here."""
    names = strategies if "*" in sweep.strategies else sweep.strategies
    return [strategies[name] for name in names if name in strategies]


def absent(suite: Suite, known: Iterable[str], selection: Selection = Selection()) -> dict[str, str]:
    """The selected kernels and strategies of a suite that nobody provides here, each with the remedy.

    Args:
        suite: The suite.
        known: Names of all kernels and strategies.
        selection: The filters.
    """
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
    """Refuses a suite and a selection with names that lead nowhere, or that do not go with the ranks.

    Args:
        suite: The suite.
        kernels: Names of all kernels.
        strategies: All strategies.
        selection: The filters.
        ranks: Ranks of the job, or None on one device.

    Raises:
        UnknownNameError: Nobody provides a kernel, strategy, placement, transport or pattern, or the suite lacks a
            selected name.
        MaskError: No mask can have a selected length.
        RequestError: A selected kernel or strategy is not installed, a mesh has other axes than its strategy, no
            sweep is for one device, or for ranks, or pairs are selected without the backward.
    """
    _check_ranks(suite, selection, ranks)
    if selection.pairs and selection.directions and Direction.BACKWARD not in selection.directions:
        raise RequestError("pairs are measured in direction backward; leave out --pairs, or --direction forward")
    _check_kernels(suite, kernels, selection)
    for name in selection.patterns:
        get_pattern(name)
    for seqlen in selection.seqlens:
        check_tokens(check_seqlen(seqlen))
    pairs = {name for sweep in suite.sweep for name in sweep.kernels if singles(name) != (name,)}
    selected = halves(name for name in selection.kernels if name not in pairs)
    _check_listed(suite, "kernel", selected, (sweep.kernels for sweep in suite.sweep))
    _check_listed(suite, "mask pattern", selection.patterns, (sweep.patterns for sweep in suite.sweep))
    _check_listed(suite, "heads", selection.heads, (sweep.heads for sweep in suite.sweep))
    _check_strategies(suite, strategies, selection)


def _check_ranks(suite: Suite, selection: Selection, ranks: int | None) -> None:
    """Refuses a suite for ranks on one device, and the other way round."""
    parallel = [bool(sweep.strategies) for sweep in suite.sweep]
    given = " and ".join(name for name, values in selection.parallel.items() if values)
    start = "give --nproc, or start longca run under torchrun"
    if ranks is not None:
        if not any(parallel):
            raise RequestError(f"suite {suite.name} has no strategies to run on ranks; leave out --nproc and torchrun")
    elif all(parallel):
        raise RequestError(f"suite {suite.name} is for several ranks: {start}")
    elif given and any(parallel):
        raise RequestError(f"{given}: strategies need several ranks; {start}")
    elif given:
        raise RequestError(
            f"no sweep of suite {suite.name} has strategies; leave out {given}, or take a suite that has some"
        )


def _check_kernels(suite: Suite, known: tuple[str, ...], selection: Selection) -> None:
    for name in halves(selection.kernels):
        if name not in known and name in suite.distributions:
            raise RequestError(f"kernel {name!r} is not here: {_remedy(suite.distributions[name])}")
    listed = halves(name for sweep in suite.sweep for name in sweep.kernels if name != "*")
    for name in (*halves(selection.kernels), *(name for name in listed if name not in suite.distributions)):
        if name not in known:
            raise UnknownNameError("kernel", name, known)


def _check_listed(suite: Suite, kind: str, selected: Iterable[str], lists: Iterable[Iterable[str]]) -> None:
    """Refuses names that no sweep of a suite lists."""
    listed = {name for names in lists for name in names}
    for name in selected:
        if name not in listed and "*" not in listed:
            raise UnknownNameError(f"{kind} of suite {suite.name}", name, listed)


def _check_strategies(suite: Suite, strategies: _Strategies, selection: Selection) -> None:
    listed = (name for sweep in suite.sweep for name in sweep.strategies)
    for name in (*selection.strategies, *listed):
        if name in strategies or name == "*":
            continue
        if name not in suite.distributions:
            raise UnknownNameError("strategy", name, strategies)
        if name in selection.strategies:
            raise RequestError(f"strategy {name!r} is not here: {_remedy(suite.distributions[name])}")
    for sweep in suite.sweep:
        here = strategies_of(sweep, strategies)
        for manifest in here:
            for text in sweep.meshes.get(manifest.name, ()):
                mesh_of(text, manifest.axes)
        if here:
            _check_offered("placements", sweep.placements, here)
            _check_offered("transports", sweep.transports, here)
    _check_offered("placements", selection.placements, strategies.values())
    _check_offered("transports", selection.transports, strategies.values())


def _check_offered(
    field: Literal["placements", "transports"], wanted: Iterable[str], strategies: Iterable[StrategyManifest]
) -> None:
    known = {AUTO, *(str(name) for manifest in strategies for name in getattr(manifest, field))}
    for name in wanted:
        if name not in known:
            raise UnknownNameError(_NOUNS[field], name, known)


def _remedy(distribution: str) -> str:
    """The remedy if a distribution does not provide its kernel or strategy here."""
    if installed_version(distribution) is None:
        return f"{distribution} is not installed. Install it: pip install {distribution}"
    return f"{distribution} is installed, but does not provide it here; `longca plugins` says why"
