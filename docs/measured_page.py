"""What the pages that are made from records share: markers, what is missing, environments, and tables.

A page asks for a part by a line `<!-- measured: NAME -->`. Nothing measured is typed by hand, and records that are not
there are an error that says how to make them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from longca_bench.reports.markdown import escaped
from longca_bench.reports.run_cells import mask_name
from longca_bench.reports.run_source import Run, flatten, open_run

DOCS = Path(__file__).resolve().parent
_MARKER = re.compile(r"^<!-- measured: (\w+) -->$", re.MULTILINE)
_ENVIRONMENT = ("device.name", "driver", "cuda", "python", "packages.", "plugins.", "git_revision")
_LONGEST = 220  # characters of a reason
_FEW = 3  # masks of one pattern that are named one by one

Found = TypeVar("Found")


def filled(page: str, parts: Mapping[str, Callable[[Found], str]], load: Callable[[], Found]) -> str:
    """A page with its markers replaced; one without any loads nothing.

    Raises:
        FileNotFoundError: A marker asks for what was not measured.
    """
    return _MARKER.sub(lambda found: parts[found[1]](load()), page)


def missing(title: str, path: Path, command: str) -> FileNotFoundError:
    """The error for a file that a page needs."""
    return FileNotFoundError(f"the page on {title} needs {path.name} in {path.parent}; make it with: {command}")


def runs_in(folder: Path, absent: FileNotFoundError) -> tuple[Run, ...]:
    """The runs in the folders of a folder.

    Args:
        folder: Where they lie.
        absent: What is raised where there is none; see `missing`.

    Raises:
        FileNotFoundError: There is none.
    """
    files = sorted(folder.glob("*/records.jsonl"))
    if not files:
        raise absent
    return tuple(open_run(file.parent) for file in files)


def link(path: Path) -> str:
    """A file or folder as the docs' pages see it."""
    return Path(os.path.relpath(path, DOCS)).as_posix()


def environment(runs: Iterable[Run]) -> str:
    """What each run was measured on, and where its records are."""
    lines = []
    for run in runs:
        facts = {name: value for name, value in flatten(run.environment or {}) if name.startswith(_ENVIRONMENT)}
        said = [f"{name} {escaped(value)}" for name, value in _shortened(facts)]
        records = f"{link(run.folder)}/records.jsonl"
        lines.append(f"- [`{run.folder.name}`]({records}), {escaped(', '.join(run.suites))}: {', '.join(said)}.")
    return "\n".join(lines)


def _shortened(facts: dict[str, str]) -> list[tuple[str, str]]:
    kept = ((name, value) for name, value in facts.items() if not name.endswith(".distribution"))
    return [(re.sub(r"^(packages|plugins|device)\.|\.version$", "", name), value) for name, value in kept]


def table(heads: Sequence[str], body: Iterable[Sequence[str]], left: Iterable[int] = (0,)) -> str:
    """A Markdown table; columns are aligned to the right but for some."""
    rule = ["---" if index in set(left) else "---:" for index in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *body))


def bold(text: str, is_bold: bool) -> str:
    """A cell's text, bold where it is the best of its row."""
    return f"**{text}**" if is_bold else text


def not_measured(runs: Iterable[Run]) -> str:
    """Every status that is not ok, with its reason and how many cases it stands for."""
    records = [record for run in runs for record in run.records]
    cases: Counter[tuple[str, str, str]] = Counter()
    said: dict[tuple[str, str, str], str] = {}
    masks: dict[tuple[str, str, str], dict[str, set[str]]] = {}
    for record in (record for record in records if record.status != "ok"):
        alike = re.sub(r"\d+(\.\d+)?", "#", record.message)[:_LONGEST]
        key: tuple[str, str, str] = record.status, record.kernel, alike
        cases[key] += 1
        said.setdefault(key, record.message)
        of_pattern = masks.setdefault(key, {}).setdefault(record.pattern, set())
        of_pattern.add(mask_name(record.pattern, record.factors))
    if not cases:
        return "Nothing: every case was measured."
    body = []
    for key in sorted(cases):
        which = ", ".join(_masks(pattern, names) for pattern, names in masks[key].items())
        reason = said[key] if len(said[key]) <= _LONGEST else f"{said[key][:_LONGEST]}…"
        body.append([key[0], f"`{key[1]}`", which, str(cases[key]), escaped(reason)])
    return table(["status", "kernel", "masks", "cases", "reason"], body, left={0, 1, 2, 4})


def _masks(pattern: str, names: set[str]) -> str:
    """The masks of one pattern: each by its name, or how many they are."""
    return ", ".join(f"`{name}`" for name in sorted(names)) if len(names) <= _FEW else f"`{pattern}` ({len(names)})"
