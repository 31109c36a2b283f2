"""The figures of LongCA-bench's paper are all there, each of its case; and the page's counts are of its masks."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from longca import registry
from longca_bench.measuring.records import read_records
from longca_bench.reports.views_published import KERNELS, figures

from .imports import ROOT

FIGURES = figures(ROOT / "results" / "paper" / "longca_bench_tables_3_to_8.json")
_CASE = ("kernel", "heads", "seqlen", "block", "kept", "direction")


def test_the_papers_tables_are_all_there():
    assert Counter(f["table"] for f in FIGURES) == {3: 96, 4: 48, 5: 24, 6: 96, 7: 48, 8: 24}
    assert {f["table"] for f in FIGURES if f["unit"] == "TFLOP/s"} == {3, 4, 5}
    assert len({(f["unit"], *(f[name] for name in _CASE)) for f in FIGURES}) == len(FIGURES)
    assert {f["kernel"] for f in FIGURES} == set(KERNELS)
    assert {kernel for kernels in KERNELS.values() for kernel in kernels} <= set(registry().kernels)
    assert {(f["kernel"], f["block"]) for f in FIGURES if f["value"] == "X"} == {("FA2 Sparse", 64)}
    assert Counter(f["table"] for f in FIGURES if f["value"] == "OOM") == {4: 7, 7: 7}


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
    found = {(f["table"], *(f[name] for name in _CASE)): f["value"] for f in FIGURES}
    assert found[about] == value


def test_fill_was_counted_on_the_masks_that_were_measured():
    results = ROOT / "results"
    rows = json.loads((results / "sparse" / "fill.json").read_text(encoding="utf-8"))["rows"]
    measured = read_records(results / "h200" / "sparse" / "half")
    counted = {record.mask_digest for record in measured if record.kernel == "bsa" and record.status == "ok"}
    assert {row["mask_digest"] for row in rows} == counted
