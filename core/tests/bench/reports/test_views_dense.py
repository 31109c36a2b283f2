"""Views of dense masks, on small records that are made by hand."""

from __future__ import annotations

import re
from typing import Any

from longca_bench.measuring.records import Record
from longca_bench.reports.markdown import markdown_of
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


def test_costs_by_length():
    text = part("costs", matrix(direction="backward", seqlen=32768))
    assert cells(text, "kernel") == ["32 K"]
    assert cells(text, "`flex`") == ["2.00 / 1.00 / 1.00"]
