"""A histogram of document lengths, from a corpus in JSON Lines or text, or from lengths.

    .jsonl, .ndjson      one document a line, the string under `field` of its object
    .txt, .md            one document a file
    lists of lengths     in the forms of `longca.masks.length_files`

Documents are streamed. Only one batch of them is in memory at a time.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

from longca.errors import RequestError
from longca.manifests.installs import absent
from longca.masks.histogram import Histogram
from longca.masks.length_files import JSON_LINES, KEYS, SUFFIXES, LengthList, holds_lengths, read_lengths

__all__ = ["CorpusHistogram", "histogram_from_corpus"]

#: Powers of √2, rounded, each once: 1, 2, 3, 4, 6, 8, 11, … 2³¹. A bin is at most 41 % (or one token) wide.
_EDGES = tuple(sorted({round(2 ** (k / 2)) for k in range(63)}))

_TEXT = (".txt", ".md")
#: Files that hold lengths, or are refused.
_LISTS = tuple(suffix for suffix in SUFFIXES if suffix not in (*JSON_LINES, *_TEXT))

_BATCH = 64  # documents that a tokenizer works through on all cores

_Counter = Callable[[list[str]], list[int]]
_Source = Literal["lengths", "text", "JSON Lines", "text and JSON Lines"]


@dataclass(frozen=True)
class CorpusHistogram(Histogram):
    """A histogram whose weights are numbers of documents, and its source.

    `unit` is that of a length: the tokenizer's tokens, words without a tokenizer, or the unit of given lengths. `empty`
    documents have no token or word, and are left out. `forms` are those of files of lengths, in words.
    """

    source: _Source
    unit: Literal["tokens", "words", "lengths"]
    documents: int
    empty: int
    forms: tuple[str, ...] = ()


def histogram_from_corpus(
    paths: str | Path | Iterable[str | Path],
    *,
    tokenizer: str | Path | None,
    field: str = "text",
) -> CorpusHistogram:
    """Counts the documents of each length. The empty bins at both ends are left off."""
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    _check(files)
    source = _source(files, tokenizer, field)
    lists: list[LengthList] = [read_lengths(file) for file in files] if source == "lengths" else []
    weights = [0] * (len(_EDGES) - 1)
    empty = 0
    listed = (length for each in lists for length in each.lengths.tolist())
    for length in listed if lists else _counted(files, tokenizer, field):
        if length == 0:
            empty += 1
        else:
            weights[bisect_right(_EDGES, length) - 1] += 1
    used = [index for index, weight in enumerate(weights) if weight]
    if not used:
        raise RequestError(f"no document with text in {', '.join(map(str, files))} ({empty} empty)")
    first, stop = used[0], used[-1] + 1
    return CorpusHistogram(
        edges=_EDGES[first : stop + 1],
        weights=tuple(weights[first:stop]),
        source=source,
        unit="lengths" if source == "lengths" else "words" if tokenizer is None else "tokens",
        documents=sum(weights),
        empty=empty,
        forms=tuple(dict.fromkeys(each.form for each in lists)),
    )


def _check(files: list[Path]) -> None:
    """Refuses errors at once that a large corpus would only show after hours."""
    if not files:
        raise RequestError("no corpus files; give at least one")
    for file in files:
        if file.suffix.lower() not in (allowed := (*JSON_LINES, *_TEXT, *_LISTS)):
            raise RequestError(f"{file}: a file of documents or lengths is {', '.join(allowed)}; convert or rename it")
        _open(file, f"no corpus file {str(file)!r}; check the path").close()


def _source(files: list[Path], tokenizer: str | Path | None, field: str) -> _Source:
    """What files hold. Lengths are counted as they are, so nothing else may be among them."""
    texts = [file for file in files if file.suffix.lower() in _TEXT]
    lists = [file for file in files if holds_lengths(file, field)]
    others = [file for file in files if file not in lists]
    if unread := [file for file in others if file.suffix.lower() in _LISTS]:
        raise RequestError(
            f"{unread[0]} holds no list of lengths; write numbers, or objects with {', '.join(KEYS)}. Give a corpus as "
            "JSON Lines, and a histogram to --lengths itself"
        )
    if lists and others:
        raise RequestError(
            f"{lists[0]} holds lengths, and {others[0]} documents; count them apart. A text of nothing but integers "
            "can be given as JSON Lines"
        )
    if lists and tokenizer is not None:
        raise RequestError(f"{lists[0]} holds lengths, which no tokenizer counts; leave out the tokenizer")
    if lists:
        return "lengths"
    return "JSON Lines" if not texts else "text" if len(texts) == len(files) else "text and JSON Lines"


def _counted(files: list[Path], tokenizer: str | Path | None, field: str) -> Iterator[int]:
    """The length of each document, counted batch by batch."""
    count = _word_counts if tokenizer is None else _token_counter(Path(tokenizer))
    documents = (text for file in files for text in _documents(file, field))
    while batch := list(islice(documents, _BATCH)):
        yield from count(batch)


def _open(file: Path, missing: str) -> BinaryIO:
    """A file, open to be read."""
    try:
        return file.open("rb")
    except FileNotFoundError:
        raise RequestError(missing) from None
    except (OSError, ValueError) as error:  # ValueError: the path has a character that no path can have
        said = getattr(error, "strerror", error)
        raise RequestError(f"{file} cannot be read: {said}; check the path and its permissions") from error


def _word_counts(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def _token_counter(path: Path) -> _Counter:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise absent(error, "counting a corpus in tokens") or error from error
    _open(path, f"no tokenizer file {str(path)!r}; give a Hugging Face tokenizer.json").close()
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise RequestError(f"{path} is not a Hugging Face tokenizer.json: {error}") from error
    # Both are settings of a model's input, and both would falsify a length.
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(texts: list[str]) -> list[int]:
        # JSON can spell half a surrogate pair, which the tokenizer cannot take.
        whole = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        return [len(encoding.ids) for encoding in tokenizer.encode_batch(whole, add_special_tokens=False)]

    return count


def _documents(file: Path, field: str) -> Iterator[str]:
    with _open(file, f"no corpus file {str(file)!r}; check the path") as lines:
        if file.suffix.lower() in _TEXT:
            yield _decode(lines.read(), str(file))
            return
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _document(line, field, f"{file}, line {number}")


def _document(line: bytes, field: str, place: str) -> str:
    try:
        record = json.loads(_decode(line, place))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        raise RequestError(f"{place}: not JSON: {error}; write one object a line") from error
    if not isinstance(record, dict):
        raise RequestError(f"{place}: a JSON {type(record).__name__}; write one object a line")
    text = record.get(field)
    if not isinstance(text, str):
        got = f"is a {type(text).__name__}" if field in record else f"is not among {', '.join(record)[:200] or 'none'}"
        raise RequestError(f"{place}: field {field!r} {got}; name the field that holds the text")
    return text


def _decode(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{place}: not UTF-8 text (byte {error.start} does not decode); save it as UTF-8") from error
