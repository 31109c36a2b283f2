"""Views and charts of block-sparse masks, on small records that are made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.image import imread

from longca.errors import RequestError
from longca_bench.reports.chart_by_kept import draw_by_kept
from longca_bench.reports.render_markdown import markdown_of
from longca_bench.reports.views import tables

from .runs import cells, rows_of
from .sparse_records import curve, half, record

SPARSE = {"pattern": ["uniform_block_sparse", "variable_block_sparse"]}


def part(view, *runs, **changes):
    return markdown_of(tables(view, rows_of(*runs), **changes))


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


PAIRS = (
    "kernel=fa4 block=128 heads=64:8 / kernel=vsa block=64 heads=64:64;"
    "kernel=bsa pattern=variable_block_sparse heads=64:64 / kernel=bsa block=128 heads=64:64;"
    "kernel=bsa block=64 heads=64:8 / kernel=vsa_triton block=64 heads=64:64"
)


def test_ratios_are_taken_in_one_run():
    alone = [record("vsa", 64, 64, 1.0)]
    text = part("contrast", half(), half(2.0), alone, pairs=PAIRS)
    assert "| fa4, blocks of 128, 64:8 | vsa, blocks of 64, 64:64 | 1.40 (1050 / 750) |" in text
    variable = "| bsa, variable\\_block\\_sparse, 64:64 | bsa, blocks of 128, 64:64 |"
    assert f"{variable} 0.50 (450 / 900) | 0.50 (360 / 720) |" in text.replace(
        "variable_block_sparse", "variable\\_block\\_sparse"
    )
    assert len(text.splitlines()) == 2 + 3
    none = part("contrast", [r for r in half() if r.kernel != "vsa_triton"], pairs=PAIRS)
    assert "| bsa, blocks of 64, 64:8 | vsa\\_triton, blocks of 64, 64:64 | – | – |" in none.replace(
        "vsa_triton", "vsa\\_triton"
    )


def test_one_pair_is_told_apart_by_columns():
    more = [record("bsa", block, 8, speed, kept=0.2) for block, speed in ((64, 100.0), (128, 150.0))]
    text = part("contrast", [*half(), *more], pairs="kernel=bsa block=128 / kernel=bsa block=64", by=["heads", "kept"])
    assert "| 64:8 | 20% | 1.50 (150 / 100) | – |" in text
    with pytest.raises(RequestError, match="'kernel=bsa' is no pair"):
        part("contrast", half(), pairs="kernel=bsa")


def test_the_share_from_which_dense_attention_is_faster():
    runs = [
        curve("bsa", (0.2, 500.0), (0.6, 500.0), (1.0, 500.0)),  # 0.4, 1.2 and 2 s, where dense takes 1
        curve("fa4", (0.2, 900.0), (0.7, 900.0)),
        curve("flex", (0.2, 100.0), (0.7, 100.0)),
        curve("vsa", (0.2, 3000.0), (1.0, 3000.0)),
    ]
    text = part("crossings", *runs)
    assert cells(text, "on") == ["`bsa`", "`fa4`", "`flex`", "`vsa`", "measured"]
    found = cells(text, "forward, 32 K, 64:8, blocks of 64")
    assert found == ["50%", "above 70%", "not from 20% on", "always", "*20% to 100%*"]


def test_each_size_of_blocks_has_a_line_and_a_kernel_without_it_nothing():
    run = [*curve("bsa", (0.2, 500.0), (0.6, 500.0)), *curve("fa4", (0.2, 400.0), (0.6, 400.0), block=128)[1:]]
    text = part("crossings", run)
    assert cells(text, "forward, 32 K, 64:8, blocks of 128")[:2] == ["", "40%"]
    assert part("crossings", run[1:]) == "", "no dense attention stands beside these"


def test_another_kernel_may_be_that_of_dense_attention(tmp_path):
    first, *sparse = curve("bsa", (0.2, 500.0), (0.6, 500.0))
    run = [first.model_copy(update={"kernel": "fa4"}), *sparse]
    assert part("crossings", run) == ""
    assert cells(part("crossings", run, base="fa4"), "forward, 32 K, 64:8, blocks of 64")[0] == "50%"
    draw_by_kept(rows_of(run), tmp_path / "chart.png", base="fa4")
    with pytest.raises(RequestError, match="beside fa3 on full attention"):
        draw_by_kept(rows_of(run), tmp_path / "none.png")


def test_the_chart_is_drawn_from_the_records(tmp_path):
    first, other = tmp_path / "first.png", tmp_path / "other.png"
    draw_by_kept(rows_of(curve("bsa", (0.2, 500.0), (0.6, 500.0))), first)
    draw_by_kept(rows_of(curve("bsa", (0.2, 50.0), (0.6, 900.0))), other)
    assert (imread(first) != imread(other)).any()
    with pytest.raises(RequestError, match="nothing was measured at two shares"):
        draw_by_kept(rows_of(half()), first)


def test_first_plans_that_took_far_longer_than_the_others():
    plans = [
        record("bsa", 64, 8, 1.0, seed=seed, plan_seconds=seconds) for seed, seconds in enumerate((60.0, 2e-3, 2e-3))
    ]
    assert cells(part("first-plans", plans), "`bsa`") == ["60.0", "60.0"]
    assert part("first-plans", half()) == ""


def test_what_the_suites_have_and_no_record():
    text = part("gaps", half(), suites=["kept", "sparse"])
    everywhere = "64:8 forward, 64:8 backward, 64:64 forward, 64:64 backward"
    assert f"| `sparse` | 16 K | {everywhere} | bsa, fa4 | variable_block_sparse 20 %, " in text
    kept = [line for line in text.splitlines() if line.startswith("| `kept` |")]
    assert all("fa2_sparse" not in line for line in kept), "it was never measured"
    kernels = ("vsa", "vsa_triton", "bsa", "flashinfer_fa2", "flashinfer_fa3", "flex", "fa4")
    tried = [record(kernel, 64, 8, 1.0, kept=kept) for kernel in kernels for kept in (0.05, 0.5)]
    tried += [record("fa3", 64, 8, 1.0), record("fa2_sparse", 64, 8, None)]  # which could not run
    some = part("gaps", [*tried, record("bsa", 64, 8, None, kept=0.1)], suites="kept")
    rows = {line.split(" | ")[3]: line for line in some.splitlines() if "64:8 forward" in line}
    assert "64, 10 %" in rows["vsa, vsa_triton, flashinfer_fa2, flashinfer_fa3, flex, fa4"], "bsa has it"
    assert all("64, 5 %" not in line for line in rows.values()), "all kernels have it"
    assert "| full |" in rows["fa3"]


def published(path: Path, *rows) -> Path:
    found = {
        "table": 3, "unit": "TFLOP/s", "shared": {"direction": "forward", "heads": "64:8", "kept": 0.5},
        "columns": [{"block": 64}, {"block": 128}],
        "rows": [{"kernel": kernel, "seqlen": 32768, "values": values} for kernel, values in rows],
    }  # fmt: skip
    path.write_text(json.dumps({"tables": [found, {**found, "unit": "GB"}]}), encoding="utf-8")
    return path


def test_published_figures_stand_beside_ours_of_the_same_case(tmp_path):
    file = published(tmp_path / "paper.json", ("FlashInfer", [222.4, 444.4]), ("FA2 Sparse", ["X", "OOM"]))
    ours = [[record("flashinfer_fa3", 64, 8, speed)] for speed in (300.0, 400.0)]
    other = [
        record("flashinfer_fa3", 128, 8, 999.0, kept=0.2),
        record("flashinfer_fa3", 128, 64, 999.0),
        record("flashinfer_fa3", 128, 8, 999.0, seqlen=65536),
        record("flashinfer_fa3", 128, 8, 999.0, direction="backward"),
        *(record("fa2_sparse", block, 8, 250.0) for block in (64, 128)),
    ]
    text = part("published", *ours, other, file=file, theirs="H100", ours="H200")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if "forward" in line]
    assert lines == [
        ["3", "forward", "32 K", "64:8", "64", "50%", "222", "", "350"],
        ["3", "forward", "32 K", "64:8", "128", "50%", "OOM", "250"],
    ]


def test_published_small_blocks_beside_large_ones(tmp_path):
    file = published(tmp_path / "paper.json", ("FlexAttention", [50.0, 400.0]), ("FlashInfer", [1.0, 2.0]))
    text = part("published-small-blocks", half(), file=file)
    assert text.splitlines()[2:] == ["| 32 K | 64:8 | 50% | 8.00 (400 / 50.0) | – |"]
