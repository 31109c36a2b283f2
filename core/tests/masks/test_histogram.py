"""Histograms: the convention of the bins, and files that are read back as they were written."""

from pathlib import Path

import pytest

from longca.errors import RequestError
from longca.masks.histogram import MAX_LENGTH, Histogram
from longca.masks.length_files import read_histogram

ROWS = [(1, 2, 0.1), (2, 2048, 0), (2048, 8192, 1 / 3), (8192, MAX_LENGTH + 1, 5)]


@pytest.mark.parametrize("name", ["h.csv", "h.json", "H.CSV"])
def test_a_written_histogram_reads_back_exactly(name: str, tmp_path: Path) -> None:
    histogram = Histogram.from_rows(ROWS)
    histogram.write(tmp_path / name)
    assert read_histogram(tmp_path / name) == histogram
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    histogram = Histogram.from_rows(ROWS)
    with pytest.raises(RequestError, match=r"written as \.csv or \.json; got .*h\.txt"):
        histogram.write(tmp_path / "h.txt")
    with pytest.raises(RequestError, match=r"cannot write .*No such file or directory"):
        histogram.write(tmp_path / "missing" / "h.csv")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no row"),
        ([(1, 2, 0)], "has no row with a weight above 0"),
        ([(5, 2, 1)], "is no bin"),
        ([(1, 2**31 + 1, 1)], "is no bin"),
        ([(1, "two", 1)], "is no bin"),
        ([(1, 2048, 1), (2049, 4096, 1)], "row 2: lower is 2049; it must be 2048.*inclusive"),
    ],
)
def test_bad_rows_are_refused(rows: list[tuple[object, ...]], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        Histogram.from_rows(rows, "lengths.csv")
    assert str(caught.value).startswith("lengths.csv")
