"""Sources of document lengths: the paper's three corpora, a user's histogram or list, and the mix with long documents.

    spec                              lengths drawn from
    None, "auto"                      pile, prolong64k or prolong512k, by the total (`for_seqlen`)
    "pile", "prolong64k", …           that corpus of the paper
    "mix", "mix:NAME", "mix:PATH"     40 % of the tokens from that source, 60 % in documents of 8-30 K
    "PATH.csv", "PATH.json"           a histogram (`longca.masks.histogram`)
    any other "PATH"                  a list of lengths (`longca.masks.length_files`), drawn with replacement

The same seed gives the same lengths in every release and for any batch size. A distribution is an inverse cumulative
function, and each document takes one uniform number of `Generator.random` over PCG64. numpy keeps the stream of PCG64
fixed, but may change how its other methods use it. A test pins a sequence.

Source: arXiv 2510.17896. Its code draws documents until the total is reached and cuts the last one there.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longca.errors import RequestError, UnknownNameError
from longca.limits import MAX_DOCUMENTS, MAX_SEQLEN, check_pieces, shown

__all__ = [
    "NAMES",
    "LengthDistribution",
    "describe_file",
    "for_seqlen",
    "from_bins",
    "from_list",
    "length_file",
    "mix",
    "named",
    "resolve_lengths",
]

NAMES = ("pile", "prolong64k", "prolong512k")

_BATCH = 4096
_LONG_SHARE = 0.6

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LengthDistribution:
    """A distribution of document lengths.

    Attributes:
        name: Its name in records.
        quantile: The inverse cumulative function: lengths, int64 [n] and ≥ 1, at cumulative shares [n] in [0, 1).
        has_long: Whether 60 % of the tokens are in documents of 8-30 K instead, shuffled among the others.
        content: The content of its file in words. Empty without a file.
    """

    name: str
    quantile: Callable[[NDArray[np.float64]], _Ints] = field(repr=False)
    has_long: bool = False
    content: str = ""

    def sample(self, total: int, seed: int | np.random.Generator, max_share: float | None = None) -> _Ints:
        """Draws document lengths, int64 [documents], each ≥ 1, that sum to exactly `total`.

        Args:
            total: Tokens to fill. The last document is cut at this total.
            seed: A seed ≥ 0, or a generator. A generator advances by exactly the numbers used.
            max_share: Cuts every document to max(1, ⌊max_share · total⌋) tokens.

        Raises:
            RequestError: `total` is not from 1 to MAX_SEQLEN, the seed is negative, `max_share` is outside (0, 1], or
                there are more than MAX_DOCUMENTS.
        """
        total = operator.index(total)
        if not 1 <= total <= MAX_SEQLEN:
            raise RequestError(f"cannot draw documents for {shown(total)} tokens; ask for 1 to {MAX_SEQLEN}")
        if max_share is not None and not 0 < max_share <= 1:
            raise RequestError(f"max_share is {max_share}; a share of the total is above 0 and at most 1")
        if not isinstance(seed, np.random.Generator) and seed < 0:
            raise RequestError(f"the seed is {seed}; seeds are 0 or more")
        rng = seed if isinstance(seed, np.random.Generator) else np.random.Generator(np.random.PCG64(seed))
        longest = total if max_share is None else max(1, math.floor(max_share * total))
        if not self.has_long:
            return _fill(self.quantile, total, rng, longest)
        short = int((1 - _LONG_SHARE) * total)
        parts = _fill(self.quantile, short, rng, longest), _fill(_long, total - short, rng, longest)
        lengths = np.concatenate(parts)
        return lengths[np.argsort(rng.random(len(lengths)), kind="stable")]


def _fill(
    quantile: Callable[[NDArray[np.float64]], _Ints], total: int, rng: np.random.Generator, longest: int
) -> _Ints:
    """Draws lengths in [1, longest] that sum to `total` ≥ 0."""
    batches: list[_Ints] = [np.empty(0, np.int64)]
    while total > 0:
        state = rng.bit_generator.state
        lengths = np.minimum(quantile(rng.random(_BATCH)), longest)
        ends = np.cumsum(lengths)
        if ends[-1] >= total:
            used = int(np.searchsorted(ends, total)) + 1
            lengths = lengths[:used]
            lengths[-1] -= ends[used - 1] - total
            # Give back the numbers drawn ahead: the caller's next draw must not depend on _BATCH.
            rng.bit_generator.state = state
            rng.random(used)
        batches.append(lengths)
        total -= int(lengths.sum())
        if len(batches) * _BATCH > MAX_DOCUMENTS:
            check_pieces(sum(map(len, batches)), "documents or more", "Draw them from longer lengths")
    return np.concatenate(batches)


def from_bins(name: str, edges: tuple[int, ...], weights: tuple[float, ...], content: str = "") -> LengthDistribution:
    """Draws a bin [edges[i], edges[i + 1]) by its weight, then a length of the bin uniformly."""
    lower, upper = np.array(edges[:-1]), np.array(edges[1:])
    # Divide by the largest weight first: the sum of finite weights may overflow a float.
    cumulative = np.cumsum(np.array(weights) / max(weights))
    cumulative /= cumulative[-1]

    def quantile(u: NDArray[np.float64]) -> _Ints:
        bins = np.searchsorted(cumulative, u, side="right")
        start = np.r_[0.0, cumulative][bins]
        within = (u - start) / (cumulative[bins] - start)
        lengths = lower[bins] + np.floor(within * (upper - lower)[bins]).astype(np.int64)
        return np.minimum(lengths, upper[bins] - 1)  # `within` may be rounded up to 1

    return LengthDistribution(name, quantile, content=content)


def from_list(name: str, lengths: _Ints, content: str = "") -> LengthDistribution:
    """Draws the entries of a list of lengths uniformly, with replacement."""
    return LengthDistribution(name, lambda u: lengths[(u * len(lengths)).astype(np.int64)], content=content)


#: The long documents of the distributed experiments: uniform from 8 K to 30 K tokens, both included.
_long = from_bins("uniform 8-30K", (8 * 1024, 30 * 1024 + 1), (1,)).quantile


def mix(short: LengthDistribution) -> LengthDistribution:
    """The shuffled mix of the distributed experiments: 60 % of the tokens in documents of 8-30 K, else `short`.

    Raises:
        RequestError: `short` is itself a mix.
    """
    if short.has_long:
        raise RequestError(f"cannot mix {short.name!r} again; mix one of {', '.join(NAMES)} or a file")
    return replace(short, name=f"mix:{short.name}", has_long=True)


@cache
def named(name: str) -> LengthDistribution:
    """One of the paper's distributions, `NAMES`: log-linear between (quantile, length) knots.

    Raises:
        UnknownNameError: The name is not in `NAMES`.
    """
    if name not in NAMES:
        raise UnknownNameError("length distribution", name, [*NAMES, "auto", "mix", *(f"mix:{n}" for n in NAMES)])
    data = resources.files("longca.masks").joinpath("data", "document_lengths.json").read_text("utf-8")
    quantiles, lengths = np.array(json.loads(data)[name], np.float64).T
    return LengthDistribution(
        name, lambda u: np.rint(np.exp(np.interp(u, quantiles, np.log(lengths)))).astype(np.int64)
    )


def for_seqlen(seqlen: int) -> LengthDistribution:
    """The paper's choice for a total of `seqlen` tokens: pile to 12 K, prolong64k to 64 K, else prolong512k."""
    if seqlen <= 12 * 1024:
        return named("pile")
    return named("prolong64k" if seqlen <= 64 * 1024 else "prolong512k")


def resolve_lengths(spec: LengthDistribution | str | Path | None, seqlen: int) -> LengthDistribution:
    """The distribution that `spec` names, for a total of `seqlen` tokens. The module's docstring lists the specs.

    Raises:
        UnknownNameError: No distribution has this name.
        RequestError: The file is missing, has another suffix, or is refused by `length_files`.
    """
    if isinstance(spec, LengthDistribution):
        return spec
    if spec is None or spec == "auto":
        return for_seqlen(seqlen)
    if isinstance(spec, str):
        kind, _, short = spec.partition(":")
        if kind == "mix":
            return mix(resolve_lengths(short or None, seqlen))
        if length_file(spec) is None:
            return named(spec)
    return _from_file(Path(spec))


def length_file(spec: str) -> Path | None:
    """The file that a spec names, alone or in a mix. None if the spec names a distribution."""
    name = spec.removeprefix("mix:")
    path = Path(name)
    return path if path.suffix or path.name != name else None


def describe_file(path: Path) -> str:
    """Describes a file of lengths: its path, and whether it is a list of lengths or a histogram.

    Raises:
        RequestError: The file is missing, has another suffix, or is refused by `length_files`.
    """
    return f"{path}: {_from_file(path).content}"


def _from_file(path: Path) -> LengthDistribution:
    from longca.masks.length_files import SUFFIXES, holds_lengths, named_column, read_histogram, read_lengths

    file, _ = named_column(path)
    if not os.path.lexists(file) or file.is_dir():
        raise RequestError(
            f"no file of document lengths at {str(file)!r}; give a histogram, a list of lengths or a name"
        )
    if file.suffix.lower() not in SUFFIXES:
        raise RequestError(
            f"{str(file)!r} is neither a histogram (.csv, .json) nor a list of lengths ({', '.join(SUFFIXES)}); rename "
            "it, or make a histogram of a corpus with longca make-lengths"
        )
    if path.suffix.lower() in {".csv", ".json"} and not holds_lengths(path):
        bins = read_histogram(path)
        return from_bins(path.name, bins.edges, bins.weights, f"a histogram of {len(bins.weights):,} bins")
    lengths, form = read_lengths(path)
    return from_list(path.name, lengths, f"{len(lengths):,} lengths, {form}")
