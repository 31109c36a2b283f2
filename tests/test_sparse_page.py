"""The measured parts of the page on block-sparse masks, built from small records made by hand."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.image import imread

from longca import registry
from longca.bench.records import Record, read_records

from .docs_pages import DOCS, docs_module, write_runs

#: TFLOP/s at 32 K tokens, half kept, forward: by kernel, block (0 for variable ones) and KV heads.
SPEEDS = {
    ("vsa", 64, 64): 500.0, ("vsa_triton", 64, 64): 400.0,
    ("bsa", 64, 64): 480.0, ("bsa", 128, 64): 600.0, ("bsa", 0, 64): 300.0,
    ("bsa", 64, 8): 550.0, ("bsa", 128, 8): 500.0, ("bsa", 0, 8): 400.0,
    ("fa4", 128, 8): 700.0,
}  # fmt: skip
#: Backward throughput over that.
BACKWARD = 0.8


def page() -> ModuleType:
    """The page's module."""
    return docs_module("sparse_page")


def paper() -> ModuleType:
    """The part that reads the paper's tables."""
    page()
    return importlib.import_module("sparse_paper")


def record(kernel: str, block: int | None, kv: int, tflops: float | None, **fields: Any) -> Record:
    """A record on half-kept blocks; block 0 for variable ones, None for full attention."""
    kept = fields.pop("kept", 0.5)
    pattern, factors = {
        None: ("full", {}),
        0: ("variable_block_sparse", {"kept": kept}),
    }.get(block, ("uniform_block_sparse", {"block": block, "kept": kept}))
    share = kept if factors else 1.0
    flops = int(share * 1e15)
    seconds = tflops and flops / tflops / 1e12
    about = {
        "case": f"{kernel}-{block}-{kv}-{kept}-{fields}", "suite": "half", "suite_version": 1,
        "suite_digest": "1" * 16, "status": "ok" if tflops else "unsupported", "message": "" if tflops else "no.",
        "kernel": kernel, "distribution": "d", "distribution_version": "1", "device": "Some GPU", "pattern": pattern,
        "factors": factors, "seqlen": 32768, "lengths": "auto", "seed": 0, "heads_q": 64, "heads_kv": kv,
        "head_dim": 128, "dtype": "bfloat16", "direction": "forward", "mask_digest": f"{block}-{kept}-{kv}", "area": 1,
        "density": share, "tile_efficiency": 1.0, "flops": flops, "finished": "2026-01-01T00:00:00+00:00",
        "plan_seconds": 2e-3, "metadata_bytes": 2**20, "peak_bytes": 2**30, "tflops": tflops, "median": seconds,
        "samples": (seconds,) if seconds else (),
    }  # fmt: skip
    return Record.model_validate({**about, **fields})


def half(factor: float = 1.0) -> list[Record]:
    """A run of every kernel at half kept, both directions."""
    return [
        record(*about, speed * factor * (1 if direction == "forward" else BACKWARD), direction=direction)
        for about, speed in SPEEDS.items()
        for direction in ("forward", "backward")
    ]


def curve(kernel: str, *speeds: tuple[float, float], block: int = 64) -> list[Record]:
    """A kernel's records by share kept, beside dense attention of 1000 TFLOP/s: 1 s."""
    points = [record(kernel, block, 8, tflops, kept=kept) for kept, tflops in speeds]
    return [record("fa3", None, 8, 1000.0), *points]


def fill_row(block: int, kv: int, fill: float) -> dict[str, Any]:
    computed = round(1000 / fill)
    rows = 128 if block or kv == 8 else 64
    return {
        "factors": {"kept": 0.5} | ({"block": block} if block else {}), "seqlen": 32768, "heads_q": 64, "heads_kv": kv,
        "visible": 1000, "computed": dict.fromkeys(("forward", "dkdv", "dq"), computed),
        "tiles": {"forward": [rows, 64], "dkdv": [64, 64], "dq": [rows, 64]},
        "fill": {"forward": fill, "backward": fill, "dkdv": fill, "dq": fill},
    }  # fmt: skip


FILLS = [fill_row(128, 8, 1.0), fill_row(0, 8, 0.8), fill_row(128, 64, 1.0), fill_row(0, 64, 0.5)]


def write(folder: Path, *runs: list[Record], metadata: list[dict[str, Any]] | None = None) -> Any:
    """A folder of results as the page takes it; gives its places."""
    write_runs(folder, *runs)
    (folder / "fill.json").write_text(json.dumps({"rows": FILLS}), encoding="utf-8")
    if metadata is not None:
        (folder / "metadata.json").write_text(json.dumps({"rows": metadata}), encoding="utf-8")
    return page().Places(folder, folder / "fill.json", folder / "charts")


def tuning(folder: Path) -> None:
    """Records of tuning: the forward 40 ms on uniform and 55 on variable blocks, dk and dv 60 and 90."""
    folder.mkdir(parents=True)
    for name, factor in (("tune-gqa128", 1.0), ("tune-var", 1.375)):
        rows = [{"kernel": kernel, "time_ms": time * factor} for kernel in ("forward", "dq") for time in (40.0, 30.0)]
        (folder / f"{name}.json").write_text(json.dumps({"results": rows}), encoding="utf-8")
    about = ((None, 64, 1, 1.0), (None, 128, 8, 2.0), (None, 128, 1, 60.0), (128, None, 8, 3.0), (128, None, 1, 90.0))
    names = ("variable", "block", "heads_a_launch", "dkdv_ms")
    launches = [{"heads": [64, 8], **dict(zip(names, row, strict=True))} for row in about]
    (folder / "launches.json").write_text(json.dumps({"rows": launches}), encoding="utf-8")


def part(name: str, places: Any) -> str:
    text: str = page().fill(f"<!-- measured: {name} -->", places)
    return text


def cells(text: str, first: str) -> list[str]:
    """The cells of the row that begins with a name."""
    (row,) = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", text, re.MULTILINE)
    return row.split(" | ")


def test_throughput_by_blocks_and_share_kept(tmp_path):
    some = [record("fa3", None, 8, 900.0), record("vsa", 128, 64, None), record("bsa", 64, 64, 640.0, kept=0.2)]
    text = part("throughput", write(tmp_path / "x", [*some, *half()]))
    titles = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert titles[0] == "Forward, 32 K tokens, 64:8 heads of 128"
    assert len(titles) == 4, "a table a direction and kind of heads"
    mha = text.split("### ")[2]
    assert cells(mha, "blocks") == ["kept", "runs", "`vsa`", "`bsa`", "`vsa_triton`"], "as the runs have them"
    rows = [line.split(" | ")[:2] for line in mha.splitlines() if line.startswith("| ")][2:]
    assert rows == [["| 64", "20%"], ["| 64", "50%"], ["| 128", "50%"], ["| variable", "50%"]]
    assert cells(mha, "128") == ["50%", "1", "–", "**600**", ""], "unsupported, and not asked"
    assert "fa3" not in text, "dense attention is no block-sparse mask"


def test_a_mask_without_any_figure_has_no_row(tmp_path):
    text = part("throughput", write(tmp_path / "x", [*half(), record("vsa", 64, 8, None, kept=0.8)]))
    assert "80%" not in text


def test_ratios_are_taken_in_one_run(tmp_path):
    alone = [record("vsa", 64, 64, 1.0)]
    text = part("ratios", write(tmp_path / "x", half(), half(2.0), alone))
    assert "| `fa4`, blocks of 128, 64:8 | `vsa`, blocks of 64, 64:64 | 1.40 (1050 / 750) |" in text
    variable = "| `bsa`, variable blocks, 64:64 | `bsa`, blocks of 128, 64:64 |"
    assert f"{variable} 0.50 (450 / 900) | 0.50 (360 / 720) |" in text
    assert len(text.splitlines()) == 2 + 7
    none = part("ratios", write(tmp_path / "y", [r for r in half() if r.kernel != "vsa_triton"]))
    assert "| `bsa`, blocks of 64, 64:8 | `vsa_triton`, blocks of 64, 64:64 | – | – |" in none


def test_the_share_from_which_dense_attention_is_faster(tmp_path):
    runs = [
        curve("bsa", (0.2, 500.0), (0.6, 500.0), (1.0, 500.0)),  # 0.4, 1.2 and 2 s, where dense takes 1
        curve("fa4", (0.2, 900.0), (0.7, 900.0)),
        curve("flex", (0.2, 100.0), (0.7, 100.0)),
        curve("vsa", (0.2, 3000.0), (1.0, 3000.0)),
    ]
    text = part("kept", write(tmp_path / "x", *runs))
    assert cells(text, "kernel") == ["forward, 32 K, 64:8, blocks of 64"]
    assert cells(text, "`bsa`") == ["50%"], "1 s lies between 0.4 s at 20 % and 1.2 s at 60 %, at three quarters"
    assert cells(text, "`fa4`") == ["above 70%"]
    assert cells(text, "`flex`") == ["not from 20% on"]
    assert cells(text, "`vsa`") == ["always"]
    assert cells(text, "*measured*") == ["20% to 100%"]


def test_each_size_of_blocks_has_a_column_and_a_kernel_without_it_nothing(tmp_path):
    run = [*curve("bsa", (0.2, 500.0), (0.6, 500.0)), *curve("fa4", (0.2, 400.0), (0.6, 400.0), block=128)[1:]]
    text = part("kept", write(tmp_path / "x", run))
    assert cells(text, "kernel") == ["forward, 32 K, 64:8, blocks of 64", "forward, 32 K, 64:8, blocks of 128"]
    assert cells(text, "`fa4`") == ["", "40%"]
    without_dense = part("kept", write(tmp_path / "y", run[1:]))
    assert "fa3 on full attention" in without_dense


def test_the_chart_is_drawn_from_the_records(tmp_path):
    places = write(tmp_path / "x", curve("bsa", (0.2, 500.0), (0.6, 500.0)), half())
    text = part("kept_chart", places)
    assert re.search(r"^!\[.*\]\(.*/x/charts/kept\.png\)$", text)
    first = imread(places.charts / "kept.png")
    assert first.shape[1] > 600
    part("kept_chart", page().Places(write(tmp_path / "y", curve("bsa", (0.2, 50.0), (0.6, 900.0))).records,
                                     places.fill, places.charts))  # fmt: skip
    again = imread(places.charts / "kept.png")
    assert again.shape == first.shape
    assert (again != first).any()
    assert "No chart" in part("kept_chart", write(tmp_path / "z", half()))


def test_throughput_on_variable_blocks_is_what_fill_gives_times_the_rest(tmp_path):
    text = part("fill", write(tmp_path / "x", half()))
    assert "| 64:8 | forward | 400 | 500 | 500 | 500 | 0.80 | 0.800 | 1.00 |" in text
    assert "| 64:8 | backward | 320 | 400 | 400 | 400 | 0.80 | 0.800 | 1.00 |" in text
    assert "| 64:64 | forward | 300 | 600 | 600 | 600 | 0.50 | 0.500 | 1.00 |" in text
    verdict = text.rpartition("\n")[2]
    assert "reached forward with 64:8 and backward with 64:8, and not reached forward with 64:64 and" in verdict
    assert "out of reach forward with 64:64 and backward with 64:64" in verdict


def test_the_verdict_is_of_the_records(tmp_path):
    slow = [r if r.factors.get("block") else r.model_copy(update={"tflops": 200.0}) for r in half()]
    verdict = part("fill", write(tmp_path / "x", [r for r in slow if r.heads_kv == 8])).rpartition("\n")[2]
    assert "is reached nowhere, and not reached forward with 64:8 and backward with 64:8." in verdict
    assert "out of reach" not in verdict, "fill alone would allow it"


def test_each_kernels_time_beside_the_pairs_that_it_computes(tmp_path):
    folder = tmp_path / "x"
    tuning(folder / "tuning")
    text = part("fill_by_kernel", write(folder, half()))
    assert "| 64:8 | forward | 128 × 64 | 128 × 64 | 0.80 | 1.25 | 40.0 | 55.0 | 1.38 | 1.10 |" in text
    assert "| 64:8 | dk and dv | 64 × 64 | 64 × 64 | 0.80 | 1.25 | 60.0 | 90.0 | 1.50 | 1.20 |" in text
    assert "| 64:64 | dq | 128 × 64 | 64 × 64 | 0.50 | 2.00 | – | – | – | – |" in text
    alone = part("fill_by_kernel", write(tmp_path / "y", half()))
    assert "| 64:8 | forward | 128 × 64 | 128 × 64 | 0.80 | 1.25 | – | – | – | – |" in alone


def test_small_blocks_beside_large_ones(tmp_path):
    run = [record("flex", block, 8, speed) for block, speed in ((64, 100.0), (128, 250.0))]
    text = part("flex", write(tmp_path / "x", [*run, record("flex", 64, 8, 90.0, kept=0.2)]))
    assert text.splitlines()[2:] == ["| 32 K | 64:8 | 50% | 2.50 (250 / 100) | – |"]


def test_small_blocks_by_length_without_those_of_other_kernels(tmp_path):
    short = [record("flex", block, 8, speed, seqlen=16384) for block, speed in ((64, 100.0), (128, 300.0))]
    text = part("flex", write(tmp_path / "x", [*half(), *short, record("flex", 64, 8, 90.0)]))
    assert text.splitlines()[2:] == ["| 16 K | 64:8 | 50% | 3.00 (300 / 100) | – |"], "32 K has no blocks of 128"


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


def test_costs_by_blocks_without_first_plans(tmp_path):
    run = [record("bsa", 64, 8, 500.0, plan_seconds=60.0), record("bsa", 128, 8, 500.0, plan_seconds=4e-3)]
    run += [record("bsa", 0, 8, 500.0), record("bsa", 64, 8, 400.0, direction="backward", metadata_bytes=2**22)]
    places = write(tmp_path / "x", run)
    text = part("costs", places)
    assert text.startswith("64:8 heads:\n\n| kernel |  | blocks of 64 | blocks of 128 | variable blocks |")
    assert "| `bsa` | forward | first / 1.00 / 1.00 | 4.00 / 1.00 / 1.00 | 2.00 / 1.00 / 1.00 |" in text
    assert "| `bsa` | backward | 2.00 / 4.00 / 1.00 | – | – |" in text
    assert cells(part("first_plans", places), "`bsa`") == ["`run0`", "60.0", "2.00"]
    assert "None took" in part("first_plans", write(tmp_path / "y", half()))


def test_metadata_says_that_it_is_not_measured_or_has_its_tables(tmp_path):
    assert part("metadata", write(tmp_path / "x", half())).startswith("*Not measured yet.*")
    costs = {"status": "ok", "seconds": 4e-3, "first_seconds": 9.0, "peak_bytes": 2**24}
    about = {"heads": "64:8", "block": 64, "kept": 0.5}
    rows = [
        {"kernel": kernel, **about, **costs, "seqlen": seqlen, "metadata_bytes": size * seqlen}
        for kernel, size in (("bsa", 2**7), ("flashinfer_fa3", 2**11))
        for seqlen in (8192, 131072)
    ]
    rows += [{"kernel": "fa4", **about, "status": "oom", "message": "no", "seqlen": 131072}]
    rows += [{"kernel": "vsa", **about, "status": "unsupported", "message": "no", "seqlen": 131072}]
    text = part("metadata", write(tmp_path / "y", half(), metadata=rows))
    assert "### 64:8 heads, blocks of 64, 50% kept" in text
    assert re.findall(r"^\| `flashinfer_fa3` \| (.*) \|$", text, re.MULTILINE) == [
        "4.00 | 4.00", "16.0 | 256", "16.0 | 16.0", "9.00 | 9.00"
    ]  # fmt: skip
    assert "| `fa4` |  | OOM |" in text
    assert "vsa" not in text
    assert text.endswith("At 128 K tokens the bytes of `bsa`'s plan over those of `flashinfer_fa3` 0.062.")


def test_what_the_path_for_any_sizes_costs(tmp_path):
    places = write(tmp_path / "x", half())
    assert part("paths", places).startswith("*Not measured yet.*")
    (tmp_path / "y" / "tuning").mkdir(parents=True)
    rows = [{"heads": [64, 8], "kernel": "dkdv", "path": 1.25, "tiles": 1.4}]
    (tmp_path / "y" / "tuning" / "paths.json").write_text(json.dumps({"seqlen": 32768, "rows": rows}), encoding="utf-8")
    assert "| 64:8 | dk and dv | 1.25 | 1.40 | 1.75 |" in part("paths", write(tmp_path / "y", half()))


def test_what_the_suites_have_and_no_record(tmp_path):
    text = part("gaps", write(tmp_path / "x", half()))
    assert "| `sparse` | 16 K | 64:8 forward, 64:8 backward, 64:64 forward, 64:64 backward | all |" in text
    kept = [line for line in text.splitlines() if line.startswith("| `kept` |")]
    assert len(kept) == 1, "the same is missing everywhere"
    assert kept[0].endswith("| all |")
    kernels = ("vsa", "vsa_triton", "bsa", "flashinfer_fa2", "flashinfer_fa3", "flex", "fa4")
    tried = [record(kernel, 64, 8, 1.0, kept=kept) for kernel in kernels for kept in (0.05, 0.5)]
    tried += [record("fa3", 64, 8, 1.0), record("fa2_sparse", 64, 8, None)]  # which could not run
    some = part("gaps", write(tmp_path / "y", [*tried, record("bsa", 64, 8, None, kept=0.1)]))
    (row,) = (line for line in some.splitlines() if "| 64:8 forward |" in line and "`kept`" in line)
    assert "`full`; blocks of 64: 10%, 20%, 30%, 70%, 80%, 100% kept; blocks of 128: 5%," in row
    assert "`fa4`" not in some


def test_statuses_are_counted_by_run(tmp_path):
    refused = [record("vsa", 64, 8, None, kept=kept / 10) for kept in range(1, 6)]
    text = part("not_measured", write(tmp_path / "x", half(), [*refused, record("bsa", 64, 8, 1.0)]))
    assert "- `run0`: 18 cases: 18 ok." in text
    assert "- `run1`: 6 cases: 5 unsupported, 1 ok." in text
    assert "| unsupported | `vsa` | `uniform_block_sparse` (5) | 5 | no. |" in text


def test_the_environment_links_to_the_records(tmp_path):
    text = part("environment", write(tmp_path / "x", half()))
    assert re.search(r"^- \[`run0`\]\(.*/x/run0/records\.jsonl\), half 1 .*name Some GPU.*torch 2\.11\.0", text)


@pytest.mark.parametrize("name", ["records.jsonl", "fill.json"])
def test_what_is_missing_is_an_error_that_says_how_to_make_it(tmp_path, name):
    places = write(tmp_path / "x", half())
    (file,) = places.records.rglob(name)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=rf"needs {re.escape(name)} in .*make it with: (longca|python) "):
        part("throughput", places)
    assert page().fill("a page without markers", places) == "a page without markers"


def test_the_guide_asks_for_every_part_and_nothing_else():
    asked = re.findall(r"^<!-- measured: (\w+) -->$", (DOCS / "sparse.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(asked) == sorted(page().MEASURED)


def test_commands_that_make_the_records_are_in_the_guide():
    text = (DOCS / "sparse.md").read_text(encoding="utf-8")
    made = {command.format(folder="results/h200/sparse") for command in page()._MADE_BY.values()}
    assert {command for command in made if command not in text} == set()


def test_fill_was_counted_on_the_masks_that_were_measured():
    places = page().Places()
    counted = {row["mask_digest"] for row in json.loads(places.fill.read_text(encoding="utf-8"))["rows"]}
    measured = {r.mask_digest for r in read_records(places.records / "half") if r.kernel == "bsa" and r.status == "ok"}
    assert counted == measured
