"""Guesses about context parallelism: what a function returns whose ranks share their work wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from longca.masks import from_dense
from longca_bench.functions.guesses import Dense, Guess, Results, equals
from longca_bench.functions.mask_guesses import with_mask
from longca_bench.functions.oracle import Asked, right, turned_back
from longca_bench.verification.reference import part_reference
from longca_builtin.blockwise import attention_forward

__all__ = ["averaged", "local_mask", "local_turns", "not_reduced", "own_keys"]


def local_turns(asked: Asked) -> Iterator[Guess]:
    """Rotary positions that count from 0 on each rank."""
    if asked.rotary is not None and asked.tokens:
        yield "", equals(right(replace(asked, rotary=replace(asked.rotary, at=_local(asked)))))


def _local(asked: Asked) -> NDArray[np.int64]:
    """The place of each token in its rank's shard."""
    found = np.empty(sum(map(len, asked.tokens)), np.int64)
    for held in asked.tokens:
        found[held] = np.arange(len(held))
    return found


def _together(asked: Asked) -> Dense:
    """The pairs of which one rank holds both tokens."""
    owners = np.empty(sum(map(len, asked.tokens)), np.int64)
    for rank, held in enumerate(asked.tokens):
        owners[held] = rank
    return np.asarray(owners[:, None] == owners)


def not_reduced(asked: Asked) -> Iterator[Guess]:
    """The gradients of each rank's keys, from the rank's own queries alone."""
    problem = asked.problem
    if not asked.tokens or problem.direction == "forward" or problem.concrete_mask.heads > 1:
        return
    shown, same, x = problem.concrete_mask.dense(), _together(asked), asked.turned
    others = attention_forward(x.q, x.k, x.v, from_dense(shown & ~same), problem.scale, torch.float64)
    part = part_reference(problem.with_mask(from_dense(shown & same)), x, others)
    rows = turned_back(asked, part).rows
    whole = right(asked)
    yield "", equals(replace(whole, rows={**whole.rows, "dk": rows["dk"], "dv": rows["dv"]}))


def averaged(asked: Asked) -> Iterator[Guess]:
    """Gradients that are an average over the ranks, or that were summed too often."""
    ranks = len(asked.tokens)
    if ranks < 2 or asked.problem.direction == "forward":
        return
    expected = right(asked)
    for factor, words in ((ranks, f"1/{ranks} of"), (1 / ranks, f"{ranks} times")):
        for names in (("dk", "dv"), ("dq", "dk", "dv")):
            yield f"{' and '.join(names)} are {words} the right ones", equals(expected, _times(factor, names))


def _times(factor: float, names: tuple[str, ...]) -> Callable[[Results], Results]:
    return lambda results: {name: r * factor if name in names else r for name, r in results.items()}


def own_keys(asked: Asked) -> Iterator[Guess]:
    """Queries that see the keys of their own rank alone."""
    if asked.tokens and asked.problem.concrete_mask.heads == 1:
        shown, local = asked.problem.concrete_mask.dense(), _local(asked)
        yield from with_mask(asked, shown & _together(asked))
        yield from with_mask(asked, shown[np.ix_(local, local)] & _together(asked))


def local_mask(asked: Asked) -> Iterator[Guess]:
    """The mask's first rows on every rank."""
    if asked.tokens and asked.problem.concrete_mask.heads == 1:
        yield from with_mask(asked, asked.problem.concrete_mask.dense()[_local(asked)])
