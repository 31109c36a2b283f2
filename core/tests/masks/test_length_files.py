"""Files of lengths: the accepted formats, and one message with the place for each bad file."""

import io
import json
import struct
from pathlib import Path

import numpy as np
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


def _npy(values: object) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(values))
    return out.getvalue()


def _idx(lengths: list[int], documents: list[int]) -> bytes:
    """As Megatron's `IndexedDatasetBuilder` writes it."""
    pointers = np.cumsum([0, *lengths[:-1]]) * 4
    parts = [b"MMIDIDX\x00\x00", struct.pack("<QBQQ", 1, 4, len(lengths), len(documents))]
    return b"".join([*parts, np.int32(lengths).tobytes(), np.int64(pointers).tobytes(), np.int64(documents).tobytes()])


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("l.txt", "\ufeff1000\n\n 96 \r\n3000\n", "numbers in text"),
        ("l.txt", "1000, 96, 3000\n", "numbers in text"),
        ("l.md", "# of tokens\n1.000000000000000000e+03\n9.6e1\n3000.0\n", "numbers in text"),
        ("l.txt", "[1000, 96,\n 3000]", "numbers in text"),
        ("l.txt", "0 1000 1096 1096 4096", "numbers in text, from bounds (cu_seqlens)"),
        ("l.json", "[1000, 96, 3000]", "JSON"),
        ("l.json", '{"seq_lengths": [1000, 96, 3000]}', "JSON"),
        ("l.json", '[{"length": 1000}, {"length": 96}, {"length": 3000}]', "JSON"),
        ("l.jsonl", "1000\n[96, 3000]\n", "JSON Lines"),
        ("l.jsonl", '{"length": 1000}\n\n{"seq_length": 96}\n{"seq_lengths": [3000]}\n', "JSON Lines"),
        ("l.jsonl", '{"cu_seqlens": [0, 1000, 1096]}\n{"cu_seqlens": [0, 3000, 3000]}\n', "JSON Lines"),
        ("l.ndjson", "\n".join(json.dumps({"input_ids": [7] * n}) for n in (1000, 0, 96, 3000)), "JSON Lines"),
        ("l.npy", _npy([1000, 96, 3000]), "a NumPy array"),
        ("l.npy", _npy(np.int32([0, 1000, 1096, 4096])), "a NumPy array, from bounds (cu_seqlens)"),
        ("l.idx", _idx([600, 400, 96, 3000], [0, 2, 3, 3, 4]), "the documents of a Megatron index"),
    ],
)
def test_lengths_are_read_in_order(name: str, content: str | bytes, form: str, tmp_path: Path) -> None:
    path = _file(tmp_path, name, content)
    lengths, found = read_lengths(path)
    assert (lengths.tolist(), found) == ([1000, 96, 3000], form)
    assert holds_lengths(path) or name == "l.csv"


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_lengths_are_read_of_a_column(name: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {"id": ["a", "b", "c"], "own": [1000, 96, 3000], "tokens": [[7] * 5, [], [7] * 8]}
    table = pa.table({**columns, "seqlens": [[2, 3], [4], [1, 1]]})
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    assert read_lengths(f"{path}:own").lengths.tolist() == [1000, 96, 3000]
    assert read_lengths(f"{path}:tokens").lengths.tolist() == [5, 8]
    assert read_lengths(path).lengths.tolist() == [2, 3, 4, 1, 1]
    with pytest.raises(RequestError, match="row 1: 'a' is not a document length"):
        read_lengths(f"{path}:id")
    with pytest.raises(RequestError, match=f"{name} has the columns id, own, tokens, seqlens; name one"):
        read_lengths(f"{path}:none")


def test_lengths_are_read_of_a_key_of_json_lines(tmp_path: Path) -> None:
    path = _file(tmp_path, "l.jsonl", '{"own": 5, "length": 6}\n{"own": [7, 7, 7]}\n')
    assert read_lengths(f"{path}:own").lengths.tolist() == [5, 3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("h.csv", "", "line 1 names no lower, upper, weight"),
        ("h.csv", "lower,upper,weight\n1,4,0,5\n", "line 2: 1,4,0,5 is no bin"),
        ("h.csv", "lower,upper,weight\n1,4,1\n3,9,1\n", "line 3: lower is 3; it must be 4"),
        ("h.csv", "lower,upper,weight\n1,,1\n", "line 2: 1, , 1 is no bin"),
        ("h.json", "", "is not a histogram: .*write lower, upper, weight"),
        ("h.json", "[]", "has no row"),
        ("h.json", '[{"lower": 1, "weight": 1}]', "upper"),
        ("h.json", "[[1, 4, null]]", "item 1: 1, 4, None is no bin"),
        ("h.json", "[1, 4]", "not a histogram"),
    ],
)
def test_bad_histograms_are_refused(name: str, content: str, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, name, content)
    with pytest.raises(RequestError, match=message) as caught:
        read_histogram(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", "", "holds no lengths"),
        ("l.txt", "5\n0\n", "line 2: 0 is not a document length; write whole numbers from 1"),
        ("l.txt", "5 5.5\n", "line 1: 5.5"),
        ("l.txt", "0\n8\n5\n", "line 3: 5 after 8"),
        ("l.txt", "length\n5\n", "line 1: 'length'"),
        ("l.txt", "5,000\n", "line 1: '5,000' may be one number"),
        ("l.txt", b"5\n\xff\n", "is not numbers in text: .utf-8"),
        ("l.json", "[[1, 4, 2]]", r"item 1: '?\[1, 4, 2\]"),
        ("l.jsonl", '{"length": 3}\n{"length": 0}\n', "line 2: length is 0"),
        ("l.npy", _npy([[1, 2]]), r"shape \[1, 2\], and needs one dim"),
        ("l.npy", b"12\n", "is not a NumPy array"),
        ("l.idx", _idx([600], [0, 1])[:-4], "is not the documents of a Megatron index"),
    ],
)
def test_bad_lists_are_refused(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, name, content)
    with pytest.raises(RequestError, match=message) as caught:
        read_lengths(path)
    assert str(caught.value).startswith(str(path))


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"absent\.csv cannot be read: No such file"):
        read_histogram(tmp_path / "absent.csv")
    with pytest.raises(RequestError, match="cannot be read: Is a directory"):
        read_lengths(tmp_path)
    with pytest.raises(RequestError, match=r"a histogram is a \.csv or \.json file"):
        read_histogram(_file(tmp_path, "h.txt", "1"))


@pytest.mark.parametrize(
    ("content", "lengths"),
    [
        ("12\n", True),
        ("12.5\n", True),
        ("12\nthirteen\n14", True),
        ("\n \n", False),
        ("12 words\n", False),
    ],
)
def test_a_list_of_lengths_is_told_from_a_text(content: str | bytes, lengths: bool, tmp_path: Path) -> None:
    assert holds_lengths(_file(tmp_path, "l.txt", content)) == lengths
