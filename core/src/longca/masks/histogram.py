"""Histograms of document lengths: contiguous half-open bins, each with a weight.

    lower,upper,weight
    1,2048,0.7           lengths 1 to 2047
    2048,8192,0.3        lengths 2048 to 8191

`upper` is exclusive, so each row's `lower` repeats the `upper` of the row before it. Inclusive bounds are refused. If
both conventions were read, "2048, 2049" could be a shared edge or a missing length, and a typing error in one
convention would pass as the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from longca.errors import RequestError

__all__ = ["COLUMNS", "MAX_LENGTH", "Histogram"]

COLUMNS = ("lower", "upper", "weight")

#: The longest document that a histogram or a file of lengths may contain. Its exclusive bound is 2³¹.
MAX_LENGTH = 2**31 - 1


@dataclass(frozen=True)
class Histogram:
    """How often documents of each length occur. `from_rows` validates and builds one.

    Attributes:
        edges: Bin i covers the lengths [edges[i], edges[i + 1]), in tokens (or in words).
        weights: One weight for each bin, ≥ 0 and not all 0. They need not sum to 1.
    """

    edges: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.edges) == len(self.weights) + 1
        assert self.edges[0] >= 1
        assert all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        assert any(weight > 0 for weight in self.weights)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[object]],
        source: str = "histogram",
        places: Sequence[str] | None = None,
    ) -> Histogram:
        """Builds a histogram from (lower, upper, weight) rows, ascending and contiguous.

        Args:
            rows: Triples. `lower` is inclusive and `upper` is exclusive.
            source: The name of the whole in messages, for instance the file.
            places: The name of each row in messages. None names them "row 1", "row 2", ….

        Raises:
            RequestError: A bound or weight is not a finite number, a bound is not a whole number in
                [1, 2³¹], a weight is negative, a row is empty, rows leave a gap or overlap, there is no
                row, or every weight is 0.
        """
        edges: list[int] = []
        weights: list[float] = []
        for index, row in enumerate(rows):
            place = f"{source}, {places[index] if places else f'row {index + 1}'}"
            lower, upper, weight = _row(row, place)
            if edges and lower != edges[-1]:
                raise RequestError(_discontinuity(place, edges[-1], lower))
            edges += [upper] if edges else [lower, upper]
            weights.append(weight)
        if not weights:
            raise RequestError(f"{source} has no rows; write at least one of {', '.join(COLUMNS)}")
        if not any(weights):
            raise RequestError(f"{source}: every weight is 0; at least one must be positive")
        return cls(tuple(edges), tuple(weights))

    def rows(self) -> Iterator[tuple[int, int, float]]:
        """The (lower, upper, weight) of each bin, ascending. Upper is exclusive."""
        return zip(self.edges[:-1], self.edges[1:], self.weights, strict=True)

    def write(self, path: str | Path) -> None:
        """Writes a `.csv` or `.json` file that `resolve_lengths` reads back to the same bins and weights.

        Raises:
            RequestError: The suffix is not `.csv` or `.json`, or the file cannot be written.
        """
        path = Path(path)
        if path.suffix.lower() == ".csv":
            text = "".join(",".join(map(str, row)) + "\n" for row in (COLUMNS, *self.rows()))
        elif path.suffix.lower() == ".json":
            text = json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in self.rows()], indent=2) + "\n"
        else:
            raise RequestError(f"a histogram is written as .csv or .json; got {str(path)!r}. Rename it")
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise RequestError(f"cannot write {str(path)!r}: {error.strerror}; choose another place") from error


def _row(row: Sequence[object], place: str) -> tuple[int, int, float]:
    if len(row) != 3:
        raise RequestError(f"{place}: {len(row)} values where {', '.join(COLUMNS)} are wanted")
    lower, upper, weight = (_finite(value, column, place) for value, column in zip(row, COLUMNS, strict=True))
    for value, column in ((lower, "lower"), (upper, "upper")):
        if value != int(value) or not 1 <= value <= MAX_LENGTH + 1:
            raise RequestError(
                f"{place}: {column} is {value:.12g}; lengths are whole numbers from 1 to {MAX_LENGTH + 1} "
                "(a document has at least 1 token: write 1, not 0)"
            )
    if weight < 0:
        raise RequestError(f"{place}: weight is {weight:g}; weights are 0 or more")
    if lower >= upper:
        raise RequestError(
            f"{place}: lower {lower:.0f} is not below upper {upper:.0f}; upper is exclusive, so a bin of one length n "
            "is written n, n + 1"
        )
    return int(lower), int(upper), weight


def _finite(value: object, column: str, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{place}: {column} is {value!r}, which is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{place}: {column} is not finite; finite numbers are allowed")
    return number


def _discontinuity(place: str, previous: int, lower: int) -> str:
    if lower > previous:
        what, advice = "leaves a gap after", "if your bounds are inclusive, add 1 to each upper"
    else:
        what, advice = "overlaps", "sort the rows and let none reach into the next"
    return (
        f"{place}: lower {lower} {what} the row before it, which ends at {previous}. upper is exclusive: this row must "
        f"start at {previous}; {advice}"
    )
