"""The page on recommendations: its outputs are what the commands print, and its figures are those of the records."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import Any

import pytest

from longca_bench.reports.rows import Rows

from .docs_pages import DOCS, docs_module, results_module
from .imports import ROOT

PAGE = DOCS / "choosing.md"
#: By how much a printed number may differ, for other processors round otherwise.
CLOSE = 0.02


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


def test_the_width_of_the_terminal():
    assert f"a terminal of {shown()._TABLE} columns" in PAGE.read_text(encoding="utf-8")


def test_there_are_questions_of_every_kind():
    asked = [block.command for block in shown().blocks(PAGE.read_text(encoding="utf-8"))]
    for option in ("--gpus 8", "block_sparse", "--memory", "b200", "--network"):
        assert any(option in command for command in asked), option


def test_what_is_left_out_is_marked():
    table = ["kernel  time", "──────────", "a       1 ms", "b       2 ms"]
    notes = ["2 more choices: --all lists them", "Note: measured with torch 2; 3 is installed."]
    call = ["    pip install d", "    call(q)"]
    refused = ["refused:", "  both are none of these:", "    c: no."]
    lines = ["x is fastest.", "", *table, "", *notes, "", *refused, "", *call]
    parts = shown()._parts("\n".join(lines))
    assert {name: len(found) for name, found in parts.items()} == {
        "sentence": 1, "table": 4, "notes": 1, "refused": 3, "call": 1,
    }  # fmt: skip
    assert shown()._shortened(parts, ("sentence", "table:1", "call")) == [
        "x is fastest.", "", "kernel  time", "──────────", "a       1 ms", "…", "", "    call(q)",
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


def test_figures_of_the_page_are_generated():
    """Outside of outputs and generated parts there are no times and no shares but the interval's and the band's."""
    text = re.sub(
        r"^```.*?^```$|^<!-- view.*?^<!-- end -->$",
        "",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    assert set(re.findall(r"\d[\d.]*\s?(?:%|ms\b|µs\b|s\b|TFLOP|×(?! \d))", text)) <= {"90 %", "10 %"}


def test_the_chart_has_every_call_and_every_pattern():
    from longca.masks import PATTERNS

    chart = docs_module("choosing_chart")
    assert sorted(name for *_, names in chart.FAMILIES.values() for name in names) == sorted(PATTERNS)
    record = ROOT / "results" / "h200" / "advice" / "leave_out"
    errors = json.loads(record.with_suffix(".json").read_text("utf-8"))["errors"]
    calls = sum(errors[name]["calls"] for name in ("all", "short or of other blocks"))
    assert len(chart.points(Rows.read(record.with_suffix(".csv")))) == calls


def test_block_sparse_calls_with_and_without_a_prediction():
    """The page says that both columns together are the block-sparse calls of two rows of the first table."""
    from longca_advice.evidence import shipped

    script = results_module("leave_out")
    found = json.loads((ROOT / "results" / "h200" / "advice" / "leave_out.json").read_text("utf-8"))
    whole = found["block-sparse without the whole pattern"]["errors"]
    usual = found["errors"]["block-sparse"]
    apart = [row for row in shipped() if row.run.run == script.APART and script._sparse(row)]
    both = usual["calls"] + usual["unpredicted"] + len(apart)
    assert whole["calls"] + whole["unpredicted"] == both


def test_what_is_said_of_the_evidence_is_so():
    """The page says which device and how many GPUs the evidence is of, and that no host was linked to another."""
    from longca_advice.evidence import shipped

    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert {row.run.device for row in shipped()} == {"NVIDIA H200"}
    assert "the records of one device, an NVIDIA H200" in text
    assert {row.ranks for row in shipped()} == {1, 2, 4}
    assert "Evidence has two and four GPUs of one host" in text
    assert "Several hosts are unverified" in text
