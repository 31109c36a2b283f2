"""The measured parts of the page on block-sparse masks, built from small records made by hand."""

from __future__ import annotations

import json
import re

import pytest
from matplotlib.image import imread

from longca_bench.measuring.records import read_records

from .docs_pages import DOCS
from .sparse_records import cells, curve, half, page, part, record, tuning, write


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
