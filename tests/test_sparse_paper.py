"""The paper's tables beside our records of block-sparse masks."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longca import registry

from .sparse_records import half, page, part, record, write


def paper() -> ModuleType:
    """The part that reads the paper's tables."""
    page()
    return importlib.import_module("sparse_paper")


def paper_file(path: Path, *tables: dict[str, Any]) -> Path:
    """Tables as the paper's are kept; each has what it has in common, its columns and its rows."""
    numbered = [{"table": number, "unit": "TFLOP/s", **about} for number, about in enumerate(tables, start=3)]
    path.write_text(json.dumps({"tables": numbered}), encoding="utf-8")
    return path


def lengths_by_blocks(heads: str, *rows: tuple[str, int, list[Any]]) -> dict[str, Any]:
    """A table of kernels and lengths by blocks of 64 and of 128, forward, half kept."""
    return {
        "shared": {"direction": "forward", "heads": heads, "kept": 0.5}, "columns": [{"block": 64}, {"block": 128}],
        "rows": [{"kernel": kernel, "seqlen": seqlen, "values": values} for kernel, seqlen, values in rows],
    }  # fmt: skip


def with_paper(places: Any, *tables: dict[str, Any]) -> Any:
    """The places, with a paper that has these tables."""
    return replace(places, paper=paper_file(places.records / "paper.json", *tables))


def test_the_papers_figures_stand_beside_ours_of_the_same_case(tmp_path):
    ours = [record("flashinfer_fa3", 64, 8, speed) for speed in (300.0, 400.0)]
    other = [
        record("flashinfer_fa3", 128, 8, 999.0, kept=0.2),
        record("flashinfer_fa3", 128, 64, 999.0),
        record("flashinfer_fa3", 128, 8, 999.0, seqlen=65536),
        record("flashinfer_fa3", 128, 8, 999.0, direction="backward"),
    ]
    table = lengths_by_blocks("64:8", ("FlashInfer", 32768, [222.4, 444.4]), ("FA2 Sparse", 32768, ["X", 333.0]))
    places = with_paper(write(tmp_path / "x", [ours[0]], [ours[1], *other]), table)
    text = part("paper", places)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert rows[0][6:] == ["FlashInfer, H100, the paper's", *(f"`flashinfer_{b}`, H200, ours" for b in ("fa2", "fa3"))]
    assert rows[2:] == [["3", "forward", "32 K", "64:8", "64", "50%", "222", "", "350"]], "the median over runs"
    assert text.endswith("\n\nWithout a case that was measured here too: FA2 Sparse, FlexAttention.")


def test_ours_beside_the_papers_are_of_its_direction_and_share(tmp_path):
    flex = {
        "shared": {"kernel": "FlexAttention", "seqlen": 32768, "heads": "64:8", "block": 64},
        "columns": [{"direction": "forward"}, {"direction": "backward"}],
        "rows": [{"kept": kept, "values": [1.0, 2.0]} for kept in (0.2, 0.5)],
    }
    speeds = {("forward", 0.2): 10.0, ("backward", 0.2): 20.0, ("forward", 0.5): 30.0, ("backward", 0.5): 40.0}
    ours = [record("flex", 64, 8, speed, direction=way, kept=kept) for (way, kept), speed in speeds.items()]
    text = part("paper", with_paper(write(tmp_path / "x", ours), flex))
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if "32 K" in line]
    assert [(row[1], row[5], row[7]) for row in cells] == [
        ("forward", "20%", "10.0"), ("backward", "20%", "20.0"), ("forward", "50%", "30.0"), ("backward", "50%", "40.0")
    ]  # fmt: skip


def test_memory_that_ran_out_in_the_paper_is_a_word_and_what_it_does_not_support_no_row(tmp_path):
    table = lengths_by_blocks("64:8", ("FA2 Sparse", 32768, ["X", "OOM"]))
    memory = {**lengths_by_blocks("64:8", ("FA2 Sparse", 32768, [2.0, 2.0])), "unit": "GB"}
    ours = [record("fa2_sparse", block, 8, 250.0) for block in (64, 128)]
    text = part("paper", with_paper(write(tmp_path / "x", ours), table, memory))
    assert [line for line in text.splitlines() if "forward" in line] == [
        "| 3 | forward | 32 K | 64:8 | 128 | 50% | OOM | 250 |"
    ]


def test_the_papers_small_blocks_beside_its_large_ones(tmp_path):
    flex = {
        "shared": {"kernel": "FlexAttention", "seqlen": 16384, "direction": "forward"},
        "columns": [{"block": 64}, {"block": 128}],
        "rows": [
            {"heads": "4:1", "kept": 0.2, "values": [50.0, 400.0]},
            {"heads": "4:4", "kept": 0.2, "values": ["OOM", 9.0]},
        ],
    }
    others = lengths_by_blocks("4:1", ("FlashInfer", 16384, [1.0, 2.0]))
    text = part("flex_paper", with_paper(write(tmp_path / "x", half()), flex, others))
    assert text.splitlines()[2:] == ["| 16 K | 4:1 | 20% | 8.00 (400 / 50.0) | – |", "| 16 K | 4:4 | 20% | – | – |"]


def test_the_papers_tables_are_all_there():
    figures = paper().read(page().Places().paper)
    assert Counter(f.table for f in figures) == {3: 96, 4: 48, 5: 24, 6: 96, 7: 48, 8: 24}
    assert {f.table for f in figures if f.unit == "TFLOP/s"} == {3, 4, 5}
    assert len({(f.unit, f.kernel, f.heads, f.seqlen, f.block, f.kept, f.direction) for f in figures}) == len(figures)
    assert {f.kernel for f in figures} == set(paper().KERNELS)
    assert {kernel for kernels in paper().KERNELS.values() for kernel in kernels} <= set(registry().kernels)
    refused = {(f.kernel, f.block) for f in figures if f.value == "X"}
    assert refused == {("FA2 Sparse", 64)}
    assert Counter(f.table for f in figures if f.value == "OOM") == {4: 7, 7: 7}


@pytest.mark.parametrize(
    ("value", "about"),
    [
        (203.54, (3, "FlashInfer", "64:8", 32768, 64, 0.8, "forward")),
        (396.90, (3, "FlashInfer", "64:8", 131072, 128, 0.5, "forward")),
        (281.27, (3, "FA2 Sparse", "64:8", 49152, 128, 0.5, "forward")),
        (342.30, (4, "FlashInfer", "64:64", 81920, 128, 0.2, "forward")),
        (57.22, (5, "FlexAttention", "4:1", 16384, 64, 0.2, "backward")),
        (352.18, (5, "FlexAttention", "4:4", 16384, 128, 0.8, "forward")),
        (19.647, (6, "FlashInfer", "64:8", 131072, 64, 0.8, "forward")),
        (12.452, (7, "FlashInfer", "64:64", 65536, 128, 0.5, "forward")),
        (0.458, (8, "FlexAttention", "4:4", 16384, 128, 0.2, "backward")),
    ],
)
def test_a_figure_of_the_paper_is_of_its_case(value, about):
    found = {
        (f.table, f.kernel, f.heads, f.seqlen, f.block, f.kept, f.direction): f.value
        for f in paper().read(page().Places().paper)
    }
    assert found[about] == value
