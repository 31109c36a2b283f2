"""Files of lengths: the accepted formats, and one message with the place for each bad file."""

from pathlib import Path

import pytest

from longca.errors import RequestError
from longca.masks.length_files import holds_lengths, read_histogram, read_lengths


def _file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.csv", "lower,upper,weight\n1,4,2\n4,9,0.5\n"),
        ("h.csv", "\ufeffWeight, source ,Upper,lower\r\n2,a,4.0,1\r\n\r\n0.5,b,9,4\r\n"),
        ("h.json", '[{"lower": 1, "upper": 4, "weight": 2}, {"lower": 4, "upper": 9, "weight": 0.5, "note": ""}]'),
        ("h.json", "[[1, 4, 2], [4, 9.0, 5e-1]]"),
    ],
)
def test_histograms_are_read(name: str, content: str, tmp_path: Path) -> None:
    histogram = read_histogram(_file(tmp_path, name, content))
    assert list(histogram.rows()) == [(1, 4, 2), (4, 9, 0.5)]


def test_lengths_are_read_in_order(tmp_path: Path) -> None:
    assert read_lengths(_file(tmp_path, "l.txt", "\ufeff12\n\n 7 \r\n2147483647\n")).tolist() == [12, 7, 2**31 - 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: no column lower, upper, weight.*reads 'nothing'"),
        ("1,4,2\n4,9,1\n", "line 1: no column lower, upper, weight.*reads '1, 4, 2'"),
        ("lower,upper\n1,4\n", "line 1: no column weight"),
        ("lower;upper;weight\n1;4;1\n", "separated by commas"),
        ("lower,upper,weight\n", "has no rows"),
        ("lower,upper,weight\n1,4,1\n\n4,9\n", "line 4: 2 cells where the header has 3"),
        ("lower,upper,weight\n1,4,1,1\n", "line 2: 4 cells where the header has 3"),
        ("lower,upper,weight\n1,4,1\n4,9,-1\n", "line 3: weight is -1"),
        ("lower,upper,weight\n1,4,1\n5,9,1\n", "line 3: lower 5 leaves a gap"),
        ("lower,upper,weight\n1,4,1\n3,9,1\n", "line 3: lower 3 overlaps"),
        ("lower,upper,weight\n1,4,nan\n", "line 2: weight is not finite"),
        ("lower,upper,weight\n1,inf,1\n", "line 2: upper is not finite"),
        ("lower,upper,weight\n1,,1\n", "line 2: upper is '', which is not a number"),
        ("lower,upper,weight\n1,4,many\n", "line 2: weight is 'many', which is not a number"),
        ("lower,upper,weight\n1," + "9" * 5000 + ",1\n", "line 2: upper is not finite"),
        ("lower,upper,weight\n" + "9" * 200_000 + ",2,1\n", "line 2: not CSV: field larger"),
        (b"lower,upper,weight\n\xff\xfe,2,1\n", "not UTF-8 text .byte 19 does not decode.; save it as UTF-8"),
    ],
)
def test_bad_csv_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "h.csv", content)
    with pytest.raises(RequestError, match=message) as caught:
        read_histogram(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON: .*write a list of objects"),
        ("[1, 2", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[[1, 2, " + "9" * 5000 + "]]", "is not JSON"),
        ("null", "holds a JSON NoneType"),
        ('{"rows": []}', "holds a JSON dict; write a list of objects"),
        ("[]", "has no rows"),
        ("[1, 2, 3]", "item 1: a JSON int"),
        ("[[1, 2]]", "item 1: 2 values where lower, upper, weight are wanted"),
        ('[{"lower": 1, "weight": 1}]', "item 1: no upper; write"),
        ("[[1, 4, 1], [4, 9, NaN]]", "item 2: weight is not finite"),
        ('[[1, "4", 1]]', "item 1: upper is '4', which is not a number"),
        ("[[1, 4, null]]", "item 1: weight is None"),
        ("[[1, 4, 0]]", "every weight is 0"),
        ("[[1, 4, 1], [6, 8, 1]]", "item 2: lower 6 leaves a gap"),
    ],
)
def test_bad_json_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "h.json", content)
    with pytest.raises(RequestError, match=message) as caught:
        read_histogram(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no lengths"),
        ("\n \n", "holds no lengths"),
        ("5\n0\n", "line 2: '0' is not a document length; write one whole number from 1"),
        ("5\n\n-3\n", "line 3: '-3'"),
        ("5.0\n", "line 1: '5.0'"),
        ("5,6\n", "line 1: '5,6'"),
        ("length\n5\n", "line 1: 'length'"),
        ("nan\n", "line 1: 'nan'"),
        ("2147483648\n", "line 1: '2147483648'"),
        (b"5\n\xff\n", "not UTF-8 text"),
    ],
)
def test_bad_lists_are_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "l.txt", content)
    with pytest.raises(RequestError, match=message) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(str(path))


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"absent\.csv cannot be read: No such file"):
        read_histogram(tmp_path / "absent.csv")
    with pytest.raises(RequestError, match="cannot be read: it is a folder, and a regular file is needed"):
        read_lengths(tmp_path)
    with pytest.raises(RequestError, match=r"a histogram is a \.csv or \.json file"):
        read_histogram(_file(tmp_path, "h.txt", "1"))


@pytest.mark.parametrize(
    ("content", "lengths"),
    [
        ("12\n", True),
        ("\ufeff12\r\n\n -7 \n+0", True),
        ("", False),
        ("\n \n", False),
        ("12 13\n", False),
        ("12\nthirteen\n", False),
        ("1,200\n", False),
        ("12.0\n", False),
        (b"12\n\xff\n", False),
    ],
)
def test_a_list_of_lengths_is_told_from_a_text(content: str | bytes, lengths: bool, tmp_path: Path) -> None:
    assert holds_lengths(_file(tmp_path, "l.txt", content)) == lengths


def test_a_file_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"absent\.txt cannot be read: No such file or directory; check the path"):
        holds_lengths(tmp_path / "absent.txt")
