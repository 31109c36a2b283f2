"""What commands print, as pages show it: `python docs/shown_output.py` writes the blocks of all pages again.

A block is a `text` block whose first line is a prompt with `longca recommend`. What the command prints is shown in
full, or the parts that a comment above the block names:

    <!-- shown: sentence table:4 call -->

Parts are `sentence`, `table`, `notes`, `refused` and `call`. A number after a colon is how many rows or refusals are
shown. A line `…` stands for what is left out. Lines that depend on the packages of a machine are always dropped: the
versions that are installed, and the commands that install the rest. Long sentences are folded.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
#: The pages with blocks.
PAGES = (ROOT / "README.md", DOCS / "start.md", DOCS / "choosing.md")
GAP = "…"
#: Characters of the terminal that a table is printed for, and of a line where sentences are folded.
_TABLE, _FOLD = 140, 96
_BLOCK = re.compile(
    r"(?:^<!-- shown: (?P<parts>[\w: ]+) -->\n+)?"
    r"^```text\n\$ (?P<command>longca recommend (?:[^\n]*\\\n)*[^\n]*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_OF_A_MACHINE = re.compile(r"Note: measured with .* is installed\.| +pip install .*")
_HEADING = 2  # lines of a table above its rows


@dataclass(frozen=True)
class Shown:
    """A block of a page.

    Attributes:
        command: The command, on one line.
        parts: The parts that are shown; empty for all.
        body: What the page shows below the command.
    """

    command: str
    parts: tuple[str, ...]
    body: str

    @classmethod
    def of(cls, found: re.Match[str]) -> Shown:
        """A block that was found in a page."""
        command = found["command"].replace("\\\n", " ")
        return cls(" ".join(command.split()), tuple((found["parts"] or "").split()), found["body"])

    def printed(self) -> str:
        """What the command prints now, as the page shows it."""
        return "".join(f"{line}\n" for line in _shortened(_parts(output(self.command)), self.parts))


def blocks(page: str) -> list[Shown]:
    """The blocks of a page."""
    return [Shown.of(found) for found in _BLOCK.finditer(page)]


def rewritten(page: str) -> str:
    """A page with what its commands print now."""

    def again(found: re.Match[str]) -> str:
        start = found.start("body") - found.start()
        return f"{found[0][:start]}{Shown.of(found).printed()}```"

    return _BLOCK.sub(again, page)


def output(command: str) -> str:
    """What a command prints on a wide terminal, from the evidence that comes with LongCA alone."""
    with tempfile.TemporaryDirectory() as empty:
        env = {name: value for name, value in os.environ.items() if not name.startswith("LONGCA_")}
        env |= {"COLUMNS": str(_TABLE), "NO_COLOR": "1", "LONGCA_HISTORY": str(Path(empty) / "evidence.jsonl")}
        arguments = [sys.executable, "-m", *shlex.split(command)]
        ran = subprocess.run(arguments, env=env, capture_output=True, text=True, check=False, timeout=600)
    if ran.returncode:
        raise RuntimeError(f"{command} failed: {ran.stderr}")
    return ran.stdout


def _parts(text: str) -> dict[str, list[str]]:
    """The lines of what is printed, part by part, without those of a machine."""
    found: dict[str, list[str]] = {}
    part, last = "sentence", ""
    for line in map(str.rstrip, text.splitlines()):
        part, last = _part(line, part, after_gap=not last), line
        if line and not _OF_A_MACHINE.fullmatch(line):
            found.setdefault(part, []).append(line)
    return found


def _part(line: str, before: str, *, after_gap: bool) -> str:
    """The part that a line belongs to, by its beginning, the part of the line before, and an empty line between."""
    if line.startswith("kernel "):
        return "table"
    if line == "refused:":
        return "refused"
    if line.startswith("    ") and (after_gap or before == "call"):
        return "call"
    says = line.startswith(("Note: ", "Order: ", "Outside ", "Valid, but ", "Not ranked: ")) or "--all lists" in line
    return "notes" if says and before != "refused" else before


def _shortened(parts: dict[str, list[str]], wanted: tuple[str, ...]) -> list[str]:
    """The lines that are shown, with an empty one between parts."""
    most = {name: int(count) if count else None for name, _, count in (part.partition(":") for part in wanted)}
    lines: list[str] = []
    for name, found in parts.items():
        if wanted and name not in most:
            more = [GAP]
        else:
            count = most.get(name)
            end = len(found) if count is None else count + (_HEADING if name == "table" else 1)
            more = [text for line in found[:end] for text in ([line] if name in ("table", "call") else _folded(line))]
            more += [GAP] * (end < len(found))
        if more == [GAP]:
            lines += ["", GAP] if lines[-1:] != [GAP] else []
        else:
            lines += ["", *more] if lines else more
    return lines


def _folded(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, _FOLD, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Writes the blocks of all pages again."""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = rewritten(before)
        page.write_text(after, encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: {len(blocks(before))} blocks{'' if before == after else ', changed'}")


if __name__ == "__main__":
    main()
