"""The page on recommendations: its outputs are what the commands print, and its figures are those of the records."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from .docs_pages import DOCS, docs_module
from .imports import ROOT

PAGE = DOCS / "choosing.md"
RECORDS = ROOT / "results" / "h200" / "advice"
#: By how much a printed number may differ, for other processors round otherwise.
CLOSE = 0.02

PARTS = ("errors", "regret", "predicted", "worst", "new_sparse", "strategies", "problems")


def page() -> Any:
    return docs_module("choosing_page")


def shown() -> Any:
    return docs_module("shown_output")


@cache
def printed(command: str, parts: tuple[str, ...]) -> str:
    text: str = shown().Shown(command, parts, "").printed()
    return text


def blocks() -> list[Any]:
    """The blocks of all pages."""
    return [
        pytest.param(block, id=f"{path.stem}-{number}")
        for path in shown().PAGES
        for number, block in enumerate(shown().blocks(path.read_text(encoding="utf-8")))
    ]


def words(text: str) -> list[str]:
    """What is printed, without spaces and rules, whose length follows the numbers'."""
    return [word for word in re.findall(r"\d+(?:\.\d+)?|[^\s\d]+", text) if not re.fullmatch("─+", word)]


def same(one: str, other: str) -> bool:
    if one[0].isdigit() and other[0].isdigit():
        return math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=0.11)
    return one == other


@pytest.mark.parametrize("block", blocks())
def test_outputs_are_what_commands_print(block):
    now = printed(block.command, block.parts)
    before, after = words(block.body), words(now)
    alike = len(before) == len(after) and all(map(same, before, after))
    assert alike, f"python docs/shown_output.py writes the pages again; {block.command} prints\n{now}"


def test_there_are_questions_of_every_kind():
    asked = [block.command for block in shown().blocks(PAGE.read_text(encoding="utf-8"))]
    for option in ("--gpus 8", "block_sparse", "--memory", "b200", "--network"):
        assert any(option in command for command in asked), option


def test_what_is_left_out_is_marked():
    table = [" kernel  time", " ───────────", " a  1 ms", " b  2 ms"]
    notes = ["2 more choices: --all lists them", "Note: measured with torch 2; 3 is installed."]
    call = ["    pip install d", "    call(q)"]
    lines = ["x is fastest.", "", *table, "", *notes, "", "refused:", "  c: no.", "", *call]
    parts = shown()._parts("\n".join(lines))
    assert {name: len(found) for name, found in parts.items()} == {
        "sentence": 1, "table": 4, "notes": 1, "refused": 2, "call": 1,
    }  # fmt: skip
    assert shown()._shortened(parts, ("sentence", "table:1", "call")) == [
        "x is fastest.", "", " kernel  time", " ───────────", " a  1 ms", "…", "", "    call(q)",
    ]  # fmt: skip
    assert "…" not in shown()._shortened(parts, ())


def test_a_block_is_written_again_and_the_rest_stays(monkeypatch):
    monkeypatch.setattr(shown(), "output", lambda command: f"answer to {command}\n")
    text = (
        "before\n\n```text\n$ longca recommend causal \\\n    --gpus 2\nold\n```\n\n```text\n$ longca run x\nold\n```\n"
    )
    new = "answer to longca recommend causal --gpus 2"
    assert shown().rewritten(text) == text.replace("--gpus 2\nold", f"--gpus 2\n{new}")


@pytest.mark.parametrize("path", [ROOT / "README.md", DOCS / "index.md"], ids=lambda path: path.name)
def test_it_is_the_first_link(path):
    links = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    assert links[0].removeprefix("docs/") == "choosing.md"


def test_the_guide_asks_for_every_part_and_nothing_else():
    asked = re.findall(r"^<!-- measured: (\w+) -->$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(asked) == sorted(page().MEASURED) == sorted(PARTS)


def part(name: str, records: Path, charts: Path) -> str:
    text: str = page().fill(f"<!-- measured: {name} -->", page().Places(records, charts))
    return text


def numbers(value: Any) -> Iterator[float]:
    """All numbers of a record."""
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from numbers(child)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


OF = dict.fromkeys(("errors", "regret", "new_sparse"), "leave_out.json") | {
    "strategies": "strategies_out.json",
    "problems": "problems/problems.json",
}


@pytest.mark.parametrize("name", OF)
def test_every_share_is_in_its_record(tmp_path, name):
    path = RECORDS / OF[name]
    known = [100 * abs(value) for value in numbers(json.loads(path.read_text("utf-8")))] if path.exists() else []
    found = re.findall(r"(\d+(?:\.(\d+))?)%", part(name, RECORDS, tmp_path))
    assert bool(found) == path.exists()
    for text, digits in found:
        off = 0.5 * 10 ** -len(digits) + 1e-9
        assert any(abs(value - float(text)) <= off for value in known), f"{text}% is not in {path}"


def test_figures_of_the_page_are_generated():
    """Outside of outputs and generated parts there are no times and no shares but the interval's and the band's."""
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"\d[\d.]*\s?(?:%|ms\b|µs\b|s\b|TFLOP|×(?! \d))", text)) <= {"90 %", "10 %"}


def test_the_calls_that_are_furthest_off_are_those_of_the_record(tmp_path):
    found = page().points(page().Places(RECORDS, tmp_path))
    most = max(max(point.ratio, 1 / point.ratio) for point in found)
    first = part("worst", RECORDS, tmp_path).splitlines()[2]
    ratio = float(re.findall(r"([\d.]+) × \|$", first)[0])
    assert max(ratio, 1 / ratio) == pytest.approx(most, rel=0.05)


def test_what_is_not_there_is_said(tmp_path):
    for name in PARTS:
        text = part(name, tmp_path / "nothing", tmp_path)
        assert re.fullmatch(r"\*Not there yet: \w.*\. `python \S+\.py --out \S+` measures it\.\*", text), text
        assert not re.search(r"\d%", text)


def test_the_chart_has_every_call_and_every_pattern(tmp_path):
    from longca.masks import PATTERNS

    text = part("predicted", RECORDS, tmp_path / "charts")
    assert re.fullmatch(r"!\[.*\]\(.*charts/predicted\.png\)", text)
    with Image.open(tmp_path / "charts" / "predicted.png") as picture:
        assert picture.width > 1000
    patterns = [name for *_, names in docs_module("choosing_chart").FAMILIES.values() for name in names]
    assert sorted(patterns) == sorted(PATTERNS)
    errors = json.loads((RECORDS / "leave_out.json").read_text("utf-8"))["errors"]
    calls = sum(errors[name]["calls"] for name in ("all", "short or of other blocks"))
    assert len(page().points(page().Places())) == calls


def write_problems(folder: Path) -> None:
    about = {
        "problems": 2, "problems_with_regret": 1, "ways_compared": 3, "median_error": 0.021, "p90_error": 0.062,
        "totals_inside": 2 / 3, "mean_regret": 0.013, "worst_regret": 0.013, "fastest_was_first": 0.0,
    }  # fmt: skip
    time = {"predicted": 0.0102, "measured": 0.01, "error": 0.02}
    way = {
        "kernel": "fa3",
        "title": "fa3",
        "times": {"forward": time, "backward": {**time, "measured": None}, "total": time},
    }
    asked = {"name": "causal 3000", "problem": {"mask": "causal", "seqlen": 3000}, "fastest": "fa4", "regret": 0.013}
    rows = [{**asked, "ways": [way]}, {"name": "x", "message": "no"}]
    (folder / "problems").mkdir(parents=True)
    (folder / "problems" / "problems.json").write_text(json.dumps({"summary": about, "problems": rows}), "utf-8")


def test_problems_that_were_measured_after_they_were_predicted(tmp_path):
    write_problems(tmp_path)
    text = part("problems", tmp_path, tmp_path)
    assert "off by 2.1% in the median and 6.2% at the 90th percentile; 67% lie in their interval." in text
    assert "The first choice took 1.3% longer" in text
    assert "| causal 3000 | `fa3` | 10.2 ms | 10 ms | +2.0% | `fa4` | 1.3% |" in text
    assert "furthest off: causal 3000 (+2.0%)." in text
    assert "| x | no |" in text
    (point,) = page().later(page().Places(tmp_path, tmp_path))
    assert (point.kernel, point.direction, point.pattern, point.seqlen) == ("fa3", "forward", "causal", 3000)
    assert (point.measured, point.predicted) == (10.0, pytest.approx(10.2))


def test_strategies_have_the_form_of_kernels(tmp_path):
    row = {"calls": 8, "unpredicted": 1, "median": 0.031, "p90": 0.12, "max": 1.5}
    regrets = {"training": {"problems": 4, "mean": 0.01, "p95": 0.02, "max": 0.03}}
    record = {"errors": {"all": row, "ulysses": row}, "coverage": 0.88, "regret": regrets}
    (tmp_path / "strategies_out.json").write_text(json.dumps(record), "utf-8")
    text = part("strategies", tmp_path, tmp_path)
    assert "| `ulysses` | 8 | 1 | 3.1% | 12.0% | 150% |" in text
    assert "88% of the measured times" in text
    assert "| training | 4 | 1.0% | 2.0% | 3.0% |" in text


def test_what_is_said_of_the_evidence_is_so():
    """The page says which device and how many GPUs the evidence is of, and that no host was linked to another."""
    from longca_advice.evidence import shipped

    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert {row.run.device for row in shipped()} == {"NVIDIA H200"}
    assert "the records of one device, an NVIDIA H200" in text
    assert {row.ranks for row in shipped()} == {1, 2, 4}
    assert "Evidence has two and four GPUs of one host" in text
    assert "Several hosts are unverified" in text
