"""Views of dense masks and of benchmarks, on small records that are made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from longca.errors import RequestError
from longca_bench.measuring.records import Record
from longca_bench.reports.chart_by_mask import draw_by_mask, points
from longca_bench.reports.render_markdown import markdown_of
from longca_bench.reports.rows import Rows
from longca_bench.reports.views import tables

from .runs import FINDINGS, cells, rows_of

#: TFLOP/s on full and on documents; no figure where a kernel does not take the mask.
SPEEDS = {"fa3": (600.0, 400.0), "flex": (400.0, 300.0), "sdpa": (500.0, None)}
TILES = {"full": 1.0, "causal_document": 0.8}


def record(kernel: str, pattern: str, tflops: float | None, seed: int = 0, **fields: Any) -> Record:
    flops = 10**12
    measured = (
        {"findings": FINDINGS, "tflops": tflops, "median": 1 / tflops, "samples": (1 / tflops,)} if tflops else {}
    )
    about = {
        "case": f"{kernel}-{pattern}-{seed}-{fields}", "suite": "dense", "suite_version": 1, "suite_digest": "1" * 16,
        "status": "ok" if tflops else "unsupported", "message": "" if tflops else f"no form; a {pattern} is none.",
        "kernel": kernel, "distribution": "d", "distribution_version": "1", "device": "Some GPU", "pattern": pattern,
        "seqlen": 8192, "lengths": "auto", "seed": seed, "heads_q": 64, "heads_kv": 8, "head_dim": 128,
        "dtype": "bfloat16", "direction": "forward", "mask_digest": f"{pattern}{seed}", "area": 1, "density": 0.5,
        "tile_efficiency": TILES[pattern], "flops": flops, "finished": "2026-01-01T00:00:00+00:00",
        "plan_seconds": 2e-3, "metadata_bytes": 2**20, "peak_bytes": 2**30,
    }  # fmt: skip
    return Record.model_validate({**about, **measured, **fields})


def matrix(**fields: Any) -> list[Record]:
    """A run of three kernels on two masks, documents drawn twice: the second draw's figures are 10 % above."""
    return [
        record(kernel, pattern, speed and speed * (1 + 0.1 * seed), seed, **fields)
        for kernel, speeds in SPEEDS.items()
        for pattern, speed in zip(TILES, speeds, strict=True)
        for seed in ((0,) if pattern == "full" else (0, 1))
    ]


def part(view: str, *runs: list[Record]) -> str:
    """A view of runs as Markdown."""
    return markdown_of(tables(view, rows_of(*runs)))


def benchmark(view: str, folder: Path, **file: Any) -> str:
    """A view of a benchmark's file as Markdown."""
    path = folder / "benchmark.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return markdown_of(tables(view, Rows.read(path)))


def test_throughput_is_the_median_over_draws_with_the_best_in_bold():
    text = part("throughput", matrix())
    assert "### forward, 8 K tokens, 64:8 heads of 128" in text
    assert cells(text, "mask") == ["tiles", "draws", "`fa3`", "`flex`", "`sdpa`"]
    assert cells(text, "`full`") == ["100%", "1", "**600**", "400", "500"]
    assert cells(text, "`causal_document`") == ["80%", "2", "**420**", "315", "–"]


def test_a_table_a_direction_length_and_shape():
    more = [*matrix(direction="backward"), *matrix(seqlen=32768), *matrix(heads_kv=64), *matrix()]
    titles = re.findall(r"^### (.*)$", part("throughput", more), re.MULTILINE)
    assert titles == [
        "forward, 8 K tokens, 64:8 heads of 128",
        "forward, 32 K tokens, 64:8 heads of 128",
        "forward, 8 K tokens, 64:64 heads of 128",
        "backward, 8 K tokens, 64:8 heads of 128",
    ]


def test_figures_of_some_draws_say_so_and_failures_have_their_word():
    records = [*matrix(), record("sdpa", "full", None, seed=1, status="oom")]
    records += [record("fa3", "causal_document", None, seed=2, status="wrong")]
    text = part("throughput", records)
    assert cells(text, "`causal_document`")[2] == "**420 (2 of 3)**"
    assert cells(text, "`full`")[-1] == "500 (1 of 2)"
    alone = part("throughput", [*matrix()[1:], record("fa3", "full", None, status="oom", case="x")])
    assert cells(alone, "`full`")[2] == "OOM"


def test_ratios_are_taken_on_a_draw_of_one_run():
    faster = [record("fa3", "full", 1200.0), record("flex", "full", 300.0)]
    text = part("over-baseline", matrix(), faster)
    assert cells(text, "`full`") == ["**2.75**", "1.25"], "of ratios 1.5 and 4 the median, not one of medians"
    assert cells(text, "`causal_document`") == ["1.33", "–"]
    assert cells(text, "*geometric mean (masks)*") == ["*1.91 (2)*", "*1.25 (1)*"]


def test_the_limit_is_full_attention_on_the_draws_tiles():
    no_limit = [record("fa3", "causal_document", 500.0, direction="backward")]
    text = part("near-limit", matrix(), no_limit)
    assert cells(text, "mask") == ["forward, 8 K"], "the limit is of the same run"
    assert cells(text, "`full`") == ["fa3 100%"]
    assert cells(text, "`causal_document`") == ["fa3 88%"], "420 of 600 × 0.8, of the median draw"


def test_the_limit_may_be_that_of_other_runs_and_of_a_pair():
    elsewhere = [
        record("fa3", "causal_document", 420.0),
        record("fa3+flex", "causal_document", 160.0, direction="backward"),
    ]
    pair = [record("fa3+flex", "full", 400.0, direction="backward"), record("flex", "full", 500.0)]
    another_day = [record("fa3", "full", 900.0)]
    rows = rows_of(matrix()[:1], pair, elsewhere, another_day)
    assert markdown_of(tables("near-limit", rows.where(run="run2"))) == "", "its run has no full attention"
    parts = rows.where(run=["run0", "run1", "run2"])
    text = markdown_of(tables("near-limit", parts, base="fa3+flex", together=True))
    assert cells(text, "`causal_document`") == ["fa3 88%", "+flex 50%"], "of 600 and 400 × 0.8; a forward is fa3's"


def test_costs_by_length():
    text = part("costs", matrix(direction="backward", seqlen=32768))
    assert cells(text, "kernel") == ["32 K"]
    assert cells(text, "`flex`") == ["2.00 / 1.00 / 1.00"]


def test_what_was_not_measured_is_counted_by_reason():
    failed = [
        record("fa3", "full", None, seed=n, status="oom", message=f"Tried to allocate {n}.50 GiB | sorry")
        for n in (1, 2)
    ]
    text = part("not-measured", [*matrix(), *failed])
    assert cells(text, "oom") == ["`fa3`", "`full`", "2", r"Tried to allocate 1.50 GiB \| sorry"]
    assert cells(text, "unsupported")[:3] == ["`sdpa`", "`causal_document`", "2"]
    assert part("not-measured", [record("fa3", "full", 1.0)]) == ""


def test_planning_is_that_of_the_worst_mask(tmp_path):
    row = {"kernel": "fa3", "pattern": "full", "seqlen": 131072, "status": "ok"}
    costs = {"seconds": 0.004, "list_bytes": 2**21, "other_bytes": 2**20, "peak_bytes": 2**23}
    refused = {**row, "kernel": "sdpa", "status": "unsupported", "message": "no"}
    rows = [{**row, **costs}, {**row, **costs, "pattern": "causal", "seconds": 0.008}, refused]
    text = benchmark("planning", tmp_path, limits_ms={131072: 10.0}, rows=rows)
    assert re.findall(r"^\| `fa3` \| (.*) \|$", text, re.MULTILINE) == ["8.00", "2.00", "1.00", "8.00", "2"]
    assert cells(text, "*limit*") == ["*10.0*"]
    assert "sdpa" not in text


def test_training_steps(tmp_path):
    row = {"kernel": "fa3", "pattern": "full", "seqlen": 131072, "status": "ok", "layers": 32, "heads": "32:8"}
    times = {"steps": 5, "step_seconds": 1.0, "reused_seconds": 0.98, "plan_seconds": 0.03, "plan_share": 0.03}
    refused = {**row, "kernel": "sdpa", "status": "unsupported", "message": "no"}
    text = benchmark("steps", tmp_path, rows=[{**row, **times, "overhead": -0.0001, "compilations": 0}, refused])
    assert text.startswith("### 32 layers, 32:8 heads")
    assert "| `full` | 128 K | `fa3` | 5 | 1000 | 980 | 30.0 | 3.0% | 0.0% | 0 |" in text


def test_training_steps_of_several_kinds_of_attention(tmp_path):
    times = {f"{name}_seconds": 0.25 for name in ("low", "prepare", "forward", "backward", "optimizer")}
    about = {"status": "ok", **times, "high_seconds": 2.0, "tokens_per_second": 32768.0, "compilations": 0}
    rows = [
        {"subject": "longca", "seconds": 1.0, "peak_bytes": 2**36, **about},
        {"subject": "flex", "seconds": 1.5, "peak_bytes": None, **about},
        {"subject": "sdpa_dense", "status": "oom", "message": "full"},
    ]
    text = benchmark("training-step", tmp_path, rows=rows)
    assert cells(text, "`longca`") == ["**1000**", "250", "2000", *["250"] * 4, "32768", "64.0", "0"]
    assert cells(text, "`flex`")[0] == "1500"
    assert cells(text, "`sdpa_dense`")[0] == "OOM"


def test_where_time_goes(tmp_path):
    factors = {
        "forward": {"cut": 1.2, "uneven": 1.0, "short": 1.3},
        "backward": {"cut": 1.1, "uneven": 0.9, "short": 1},
    }
    about = {"pattern": "causal_document", "seqlen": 8192, "seed": 0, "tile_efficiency": 0.8}
    text = benchmark("ablation", tmp_path, rows=[{**about, **factors}])
    assert cells(text, "`causal_document`") == ["8 K", "80%", "1.20", "1.00", "1.30", "1.10", "0.90", "1.00"]


def test_layers_beside_intervals(tmp_path):
    beside = {"fa4": {"forward_ms": 2.0, "backward_ms": 4.0}, "fa3": {"forward_ms": 3.0, "backward_ms": 5.0}}
    about = {"pattern": "causal_document", "seqlen": 8192, "seed": 0, "layers": 2}
    text = benchmark("layers", tmp_path, rows=[{**about, "kernels": beside}])
    assert cells(text, "mask")[-2:] == ["fa3 forward", "fa3 backward"]
    assert cells(text, "`causal_document`") == ["8 K", "2", "2.00", "4.00", "1.50", "1.25"]


def test_a_chart_by_mask_has_the_medians_and_their_limits(tmp_path):
    rows = Rows.of(matrix(), {"device": {"name": "Some GPU"}})
    found = points(rows).set_index(["mask", "kernel"])
    assert found.loc[("causal_document", "fa3"), "tflops"] == 420
    assert found.loc[("causal_document", "fa3"), "limit"] == pytest.approx(480)
    draw_by_mask(rows, tmp_path / "chart.png", metadata={"Description": "kept"})
    assert (tmp_path / "chart.png").stat().st_size > 10_000
    with pytest.raises(RequestError, match="one length, shape and device; 2 were given"):
        points(Rows.of([*matrix(), *matrix(seqlen=32768)], {"device": {"name": "Some GPU"}}))


def test_the_parts_of_a_call_are_those_of_the_quickest_kernel(tmp_path):
    def row(kernel, pattern, direction, seconds):
        shares = {"of_limit": 0.8, "main_of_limit": 0.9}
        about = {"kernel": kernel, "mask": f"{pattern} of 8192 tokens", "direction": direction, "seconds": seconds}
        return {**about, "others": 3e-4, **shares, "parts": {"launch": seconds}}

    slow, fast = row("fa3", "causal", "forward", 3e-3), row("fa4", "causal", "forward", 2e-3)
    text = benchmark("call-parts", tmp_path, rows=[slow, fast, row("fa3", "full", "backward", 5e-3)])
    assert cells(text, "`causal`")[:5] == ["`fa4`", "2.00", "0.30", "0.80", "0.90"]
    assert cells(text, "`full`")[5:] == ["`fa3`", "5.00", "0.30", "0.80", "0.90"]
