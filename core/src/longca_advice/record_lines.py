"""The lines of a run's records, held against their chain.

Each line of `records.jsonl` has the field `previous`: the number and the digest of the line before, as in `41:9c1f…`.
The first line has 0 and the digest of `environment.json`, or of nothing without one. `seal.json` has the last line's
link, and is written when a run stops. A line that was changed, dropped, doubled, inserted or moved contradicts the
links of other lines. Lines of earlier versions have no link, and nothing speaks for or against them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from longca.errors import RequestError
from longca.regular_files import append_line, read_regular

__all__ = [
    "ENVIRONMENT",
    "LINK",
    "MOST_OF_LINE",
    "MOST_WRONG",
    "RECORDS",
    "SEAL",
    "RecordLines",
    "append_linked",
    "link_to",
    "parse_json",
    "parse_linked",
    "read_beside",
    "read_lines",
]

RECORDS, ENVIRONMENT, SEAL = "records.jsonl", "environment.json", "seal.json"
#: A link: the number and the digest of a line.
LINK = r"^\d{1,9}:[0-9a-f]{32}$"
#: Bytes that one line, all lines, and a file beside the records may have.
MOST_OF_LINE, _MOST_OF_FILE, _MOST_BESIDE = 2**23, 2**29, 2**24
#: Lines of a file of records, and lines that are wrong, after which it is not read on.
_MOST_LINES, MOST_WRONG = 2**20, 1000
#: Levels of nested lists and objects. Code that walks through them calls itself for each level.
_DEEPEST = 64
#: The beginning of a line that `append_linked` wrote.
_BEGIN = re.compile(rb'^\{"previous": ?"(\d{1,9}:[0-9a-f]{32})",(?: ?"digest": ?"([0-9a-f]{32})",)?')


def link_to(number: int, line: bytes) -> str:
    """The link to a line.

    Args:
        number: The line's number, or 0 for the environment.
        line: The line without its newline, or the content of `environment.json`.
    """
    return f"{number}:{_digest(line).decode()}"


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest()[:32].encode()


def append_linked(path: Path, line: bytes, most: int) -> None:
    """Adds a line that begins with a link to the line before it, and with a digest of the link and of itself.

    Args:
        path: The file. It needs no environment and no seal.
        line: The line: an object of JSON that is not empty.
        most: Bytes that the file may have before.

    Raises:
        OSError: The file cannot be read or written.
    """

    def linked(before: bytes) -> bytes:
        lines = before.split(b"\n")[:-1]
        link, rest = link_to(len(lines), lines[-1] if lines else b"").encode(), line.removeprefix(b"{")
        return b'{"previous":"' + link + b'","digest":"' + _digest(link + rest) + b'",' + rest

    append_line(path, linked, most)


def parse_linked(line: bytes) -> tuple[bytes, str | None, bool | None]:
    """The parts of a line that `append_linked` wrote.

    Returns:
        The line before the link and the digest were added, the link, and whether the digest is right. The link is None
        for a line without one. The last value is None for a line without a digest.
    """
    if (found := _BEGIN.match(line)) is None:
        return line, None, None
    link, digest, rest = found[1], found[2], line[found.end() :]
    return b"{" + rest, link.decode(), None if digest is None else digest == _digest(link + rest)


@dataclass(frozen=True)
class RecordLines:
    """The lines of a file of records.

    Attributes:
        file: The file.
        lines: The lines without their newlines.
        torn: Whether the last line has no newline.
        environment: The content of `environment.json`, or None without one.
        seal: The link to the last line when the run last stopped, or None without `seal.json`. Empty if that holds no
            link.
        seal_fault: The reason why `seal.json` could not be read, or an empty text.
    """

    file: Path
    lines: tuple[bytes, ...]
    torn: bool
    environment: bytes | None
    seal: str | None
    seal_fault: str = ""

    def named(self, number: int, said: object) -> str:
        """A sentence about a line."""
        return f"{self.file}, line {number}: {said}"

    def not_read_on(self, number: int) -> str:
        """A sentence about the first line after too many wrong ones."""
        return self.named(number, f"it and later lines were not read, after {MOST_WRONG} that are wrong")

    def breaks(self, previous: Mapping[int, str | None]) -> Iterator[tuple[int | None, str]]:
        """The lines that contradict the chain, each with a sentence. A number is missing if its line is not there.

        Args:
            previous: The link of each line that could be read, by the line's number.
        """
        if self.seal_fault:
            yield None, self.seal_fault
        if self.seal == "":
            yield None, f"{self.file.with_name(SEAL)} has no link to a last line; it was changed"
        links = {link for link in (*previous.values(), self.seal) if link}
        places = _places(previous)
        own = {line: link_to(place, self.lines[line - 1]) for line, place in places.items() if place}
        vouched = {place: own[line] for line, place in places.items() if own.get(line) in links}
        spoken_of = {_number(link) for link in links}
        unread = set(range(1, len(self.lines) + 1)) - set(places)
        first: dict[str, int] = {}
        highest = 0
        for line, place in places.items():
            if place is None:
                said = "it was inserted: it has no link to a line before it"
            elif own[line] in first:
                said = f"it doubles line {first[own[line]]}"
            elif own[line] not in links and place in vouched:
                said = "it was inserted, or it is a changed copy: another line has its place"
            elif own[line] not in links and place in spoken_of:
                said = "it was changed after it was written"
            elif vouched.get(place - 1, previous[line]) != previous[line]:
                said = "it was inserted: it follows no line of the run"
            else:
                if place < highest:
                    yield None, self.named(line, f"it was moved: it was written as line {place}")
                first[own[line]], highest = line, max(highest, place)
                continue
            unread.add(line)
            yield line, self.named(line, said)
        yield from ((None, said) for said in self._gaps({place or 0 for place in places.values()} | unread, spoken_of))
        if self.environment is not None and 0 in spoken_of and link_to(0, self.environment) not in links:
            yield None, f"{self.file.with_name(ENVIRONMENT)} was changed after the run began"

    def _gaps(self, there: set[int], spoken_of: set[int]) -> Iterator[str]:
        """Sentences about the lines that others link to, or that come between others, and that are not there."""
        ends = sorted(there | {0} | {number + 1 for number in spoken_of if number and number not in there})
        for low, high in pairwise(ends):
            if missing := range(low + 1, high):
                which = f"line {missing[0]} is" if len(missing) == 1 else f"lines {missing[0]} to {missing[-1]} are"
                yield f"{self.file}: {which} missing; a written line was dropped"


def read_lines(path: Path) -> RecordLines:
    """The lines of a run, and what is beside them.

    Args:
        path: The run's folder, in which links are refused, or a file of records.

    Raises:
        RequestError: The records or the environment cannot be read, are no regular file or are too large.
    """
    folder, file = (path, path / RECORDS) if path.is_dir() else (path.parent, path)
    try:
        content = read_regular(file, _MOST_OF_FILE, follow=not path.is_dir())
    except OSError as error:
        raise RequestError(f"cannot read records from {file}: {error.strerror}") from None
    if (count := content.count(b"\n")) > _MOST_LINES:
        raise RequestError(f"{file} has {count} lines, and at most {_MOST_LINES} are read")
    *lines, rest = content.split(b"\n")
    whole = (*lines, rest) if rest else tuple(lines)
    environment, fault = read_beside(folder / ENVIRONMENT), ""
    try:
        seal = _seal(folder / SEAL)
    except RequestError as error:  # the lines are read as those of a run without a seal
        seal, fault = None, str(error)
    return RecordLines(file, whole, bool(rest), environment, seal, fault)


def read_beside(file: Path) -> bytes | None:
    """The content of a file beside the records, or None without one.

    Raises:
        RequestError: The file cannot be read, is no regular file or is too large.
    """
    try:
        return read_regular(file, _MOST_BESIDE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"cannot read {file}: {error.strerror}") from None


def parse_json(content: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: The content is no JSON text, or is nested too deeply.
    """
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep") from None
    level = [found]
    for _ in range(_DEEPEST):
        level = [part for each in level if isinstance(each, dict | list) for part in _parts(each)]
    if level:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    return found


def _parts(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _seal(file: Path) -> str | None:
    """The link in a seal, or an empty text for a seal that holds none."""
    content = read_beside(file)
    if content is None:
        return None
    try:
        link = parse_json(content)["last"]
        return link if re.match(LINK, link) else ""
    except (ValueError, LookupError, TypeError):
        return ""


def _places(previous: Mapping[int, str | None]) -> dict[int, int | None]:
    """The number that each line was written as. A line without a link has none after the first line with a link."""
    places: dict[int, int | None] = {}
    linked = False
    for line, link in previous.items():
        linked = linked or link is not None
        unlinked = None if linked else line
        places[line] = unlinked if link is None else _number(link) + 1
    return places


def _number(link: str) -> int:
    return int(link.partition(":")[0])
