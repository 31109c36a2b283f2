"""Histograms of corpora: what is counted, in which unit, and that broken corpora are refused with the line."""

import json
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from longca.errors import MissingPackageError, RequestError
from longca.masks import lengths
from longca_bench.suites.corpus import histogram_from_corpus


def _jsonl(path: Path, texts: Iterable[str], field: str = "text") -> Path:
    with path.open("w") as file:
        file.writelines(json.dumps({field: text, "id": index}) + "\n" for index, text in enumerate(texts))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A token a letter, so that tokens and words differ, with every setting that could falsify a length."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "[BOS]": 2}, unk_token="[UNK]"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Split("", "isolated"),
        ]
    )
    letters.post_processor = tokenizers.processors.TemplateProcessing("[BOS] $A", special_tokens=[("[BOS]", 2)])
    letters.enable_truncation(4)
    letters.enable_padding(length=4)
    path = tmp_path / "tokenizer.json"
    letters.save(str(path))
    return path


def test_words_are_counted_in_json_lines_and_texts(tmp_path: Path) -> None:
    corpus = _jsonl(tmp_path / "a.jsonl", ["one two three", "", "  \n", "w " * 50])
    (tmp_path / "b.txt").write_text("a document\n\nof two paragraphs")
    histogram = histogram_from_corpus([corpus, str(tmp_path / "b.txt")], tokenizer=None)
    assert (histogram.unit, histogram.documents, histogram.empty) == ("words", 3, 2)
    # Trimmed at both ends; empty bins between stay, with weight 0.
    assert list(histogram.rows()) == [
        (3, 4, 1), (4, 6, 1), (6, 8, 0), (8, 11, 0), (11, 16, 0), (16, 23, 0), (23, 32, 0), (32, 45, 0), (45, 64, 1),
    ]  # fmt: skip


def test_tokens_are_counted_whole(tokenizer: Path, tmp_path: Path) -> None:
    corpus = _jsonl(tmp_path / "a.ndjson", ["a" * 9, "aa aa", "", "xyz" * 100], field="content")
    histogram = histogram_from_corpus(corpus, tokenizer=tokenizer, field="content")
    assert (histogram.unit, histogram.documents, histogram.empty) == ("tokens", 3, 1)
    assert [row for row in histogram.rows() if row[2]] == [(4, 6, 1), (8, 11, 1), (256, 362, 1)]


def test_lengths_one_a_line_are_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("\ufeff1000\n\n 96 \r\n3000\n", "utf-8")
    histogram = histogram_from_corpus([tmp_path / "lengths.txt"] * 2, tokenizer=None)
    assert (histogram.source, histogram.unit, histogram.documents, histogram.empty) == ("lengths", "lengths", 6, 0)
    assert [row for row in histogram.rows() if row[2]] == [(91, 128, 2), (724, 1024, 2), (2896, 4096, 2)]


def test_lengths_go_with_nothing_else(tmp_path: Path) -> None:
    numbers, text = tmp_path / "numbers.txt", tmp_path / "text.txt"
    numbers.write_text("12\n0\n")
    text.write_text("twelve")
    for other in (text, _jsonl(tmp_path / "a.jsonl", ["twelve"])):
        with pytest.raises(RequestError, match=rf"numbers\.txt holds lengths, and .*{other.name} documents; "):
            histogram_from_corpus([other, numbers], tokenizer=None)
    with pytest.raises(RequestError, match="which no tokenizer counts; leave out the tokenizer"):
        histogram_from_corpus(numbers, tokenizer="tokenizer.json")
    with pytest.raises(RequestError, match=r"numbers\.txt, line 2: 0 is not a document length"):
        histogram_from_corpus(numbers, tokenizer=None)


def test_corpus_to_histogram_to_lengths(tmp_path: Path) -> None:
    drawn = lengths.named("pile").sample(200_000, seed=0)
    corpus = _jsonl(tmp_path / "a.jsonl", ("w " * length for length in drawn.tolist()))
    histogram = histogram_from_corpus(corpus, tokenizer=None)
    histogram.write(tmp_path / "h.csv")
    again = lengths.resolve_lengths(tmp_path / "h.csv", 4096).sample(4_000_000, seed=0)
    for share in (0.1, 0.5, 0.9):
        # Within a bin, whose ends are a factor of √2 apart, and the sampling error of so small a corpus.
        assert abs(np.log2(np.quantile(again, share) / np.quantile(drawn, share))) < 0.5


def test_a_corpus_is_never_whole_in_memory(tmp_path: Path) -> None:
    corpus = _jsonl(tmp_path / "a.jsonl", ("word " * 200 for _ in range(2000)))
    tracemalloc.start()
    histogram_from_corpus(corpus, tokenizer=None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < corpus.stat().st_size / 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "line 3: not JSON"),
        (b'"text"', "line 3: a JSON str; write one object a line"),
        (b'{"body": "a", "id": 1}', "line 3: field 'text' is not among body, id; name the field"),
        (b'{"text": "\xff"}', "line 3: not UTF-8 text .byte 10"),
    ],
)
def test_broken_lines_are_refused(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(RequestError, match=message) as caught:
        histogram_from_corpus(path, tokenizer=None)
    assert str(caught.value).startswith(str(path))


def test_wrong_corpora_are_refused(tmp_path: Path) -> None:
    good = _jsonl(tmp_path / "a.jsonl", ["a"])
    empty = _jsonl(tmp_path / "empty.jsonl", ["", " "])
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    for paths, message in [
        ([], "no corpus files"),
        ([good, tmp_path / "absent.jsonl"], r"no corpus file .*absent\.jsonl"),
        ([tmp_path / "a.docx"], r"a file of documents or lengths is \.jsonl, \.ndjson, \.txt, \.md"),
        ([empty], r"no document with text in .*empty\.jsonl \(2 empty\)"),
        ([tmp_path / "latin.txt"], r"latin\.txt: not UTF-8 text"),
    ]:
        with pytest.raises(RequestError, match=message):
            histogram_from_corpus(paths, tokenizer=None)


def test_a_missing_package_is_named_only_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    corpus = _jsonl(tmp_path / "a.jsonl", ["a"])
    assert histogram_from_corpus(corpus, tokenizer=None).unit == "words"
    with pytest.raises(MissingPackageError, match=r"pip install .*core\[corpus\]"):
        histogram_from_corpus(corpus, tokenizer=tmp_path / "tokenizer.json")
