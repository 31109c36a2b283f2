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
from pathlib import Path
from typing import Any

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

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[Any]],
        source: str = "histogram",
        places: Sequence[str] | None = None,
    ) -> Histogram:
        """Builds a histogram from (lower, upper, weight) rows, ascending and contiguous. `upper` is exclusive.

        `source` names the whole in messages, for instance the file, and `places` each row.

        Raises:
            RequestError: A row is no bin, rows leave a gap or overlap, or no weight is above 0.
        """
        edges: list[int] = []
        weights: list[float] = []
        for index, row in enumerate(rows):
            place = f"{source}, {places[index] if places else f'row {index + 1}'}"
            lower, upper, weight = _row(row, place)
            if edges and lower != edges[-1]:
                raise RequestError(
                    f"{place}: lower is {lower}; it must be {edges[-1]}, where the row before ends. Sort the rows, and "
                    "add 1 to each upper if your bounds are inclusive"
                )
            edges += [upper] if edges else [lower, upper]
            weights.append(weight)
        if not any(weights):
            raise RequestError(f"{source} has no row with a weight above 0; write {', '.join(COLUMNS)} of each bin")
        return cls(tuple(edges), tuple(weights))

    def rows(self) -> Iterator[tuple[int, int, float]]:
        """The (lower, upper, weight) of each bin, ascending. Upper is exclusive."""
        return zip(self.edges[:-1], self.edges[1:], self.weights, strict=True)

    def write(self, path: str | Path) -> None:
        """Writes a `.csv` or `.json` file that `resolve_lengths` reads back, or raises RequestError."""
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


def _row(row: Sequence[Any], place: str) -> tuple[int, int, float]:
    """The bounds and the weight of a row of numbers or their texts."""
    try:
        lower, upper, weight = map(float, row)
        if (
            1 <= lower < upper <= MAX_LENGTH + 1
            and lower.is_integer()
            and upper.is_integer()
            and 0 <= weight < math.inf
        ):
            return int(lower), int(upper), weight
    except (TypeError, ValueError, OverflowError):
        pass
    raise RequestError(
        f"{place}: {', '.join(map(str, row))[:80]} is no bin; write {', '.join(COLUMNS)}: whole numbers from 1 to "
        f"{MAX_LENGTH + 1}, lower below upper, and a weight of 0 or more"
    )
