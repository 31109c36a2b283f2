"""Views of block-sparse masks, on small records that are made by hand."""

from __future__ import annotations

import re

from longca_bench.reports.markdown import markdown_of
from longca_bench.reports.views import tables

from .runs import cells, rows_of
from .sparse_records import curve, half, record

SPARSE = {"pattern": ["uniform_block_sparse", "variable_block_sparse"]}


def part(view, *runs):
    return markdown_of(tables(view, rows_of(*runs)))


def test_throughput_of_masks_per_head():
    some = [record("fa3", None, 8, 900.0), record("vsa", 128, 64, None), record("bsa", 64, 64, 640.0, kept=0.2)]
    text = markdown_of(tables("throughput", rows_of([*some, *half()]).where(**SPARSE)))
    titles = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert titles[0] == "forward, 32 K tokens, 64:8 heads of 128"
    assert len(titles) == 4, "a table for each direction and kind of heads"
    mha = text.split("### ")[2]
    named = [line.split("`")[1] for line in mha.splitlines() if line.startswith("| `")]
    assert named == ["uniform_block_sparse 64, 20 %", "uniform_block_sparse 64, 50 %", "uniform_block_sparse 128, 50 %",
                     "variable_block_sparse 50 %"]  # fmt: skip
    assert "fa3" not in text, "dense attention is no block-sparse mask"


def test_the_share_from_which_dense_attention_is_faster():
    runs = [
        curve("bsa", (0.2, 500.0), (0.6, 500.0), (1.0, 500.0)),  # 0.4, 1.2 and 2 s, where dense takes 1
        curve("fa4", (0.2, 900.0), (0.7, 900.0)),
        curve("flex", (0.2, 100.0), (0.7, 100.0)),
        curve("vsa", (0.2, 3000.0), (1.0, 3000.0)),
    ]
    text = part("crossings", *runs)
    assert cells(text, "on") == ["`bsa`", "`fa4`", "`flex`", "`vsa`"]
    found = cells(text, "forward, 32 K, 64:8, blocks of 64")
    assert found == ["50%", "above 70%", "not from 20% on", "always"]


def test_each_size_of_blocks_has_a_line_and_a_kernel_without_it_nothing():
    run = [*curve("bsa", (0.2, 500.0), (0.6, 500.0)), *curve("fa4", (0.2, 400.0), (0.6, 400.0), block=128)[1:]]
    text = part("crossings", run)
    assert cells(text, "forward, 32 K, 64:8, blocks of 128") == ["", "40%"]
    assert part("crossings", run[1:]) == "", "no dense attention stands beside these"
