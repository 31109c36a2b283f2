"""Tables of docs/dense.md, docs/sparse.md and docs/costs.md that are written by hand, beside masks and records."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest
from pandas import DataFrame

from longca import masks
from longca_bench.reports.derived import over_full
from longca_bench.reports.rows import Rows

from .docs_pages import DOCS, RESULTS, docs_module, said, table_rows


def rows_of(page: str, *head: str) -> dict[str, list[str]]:
    """The rows of a page's table, by their first cell."""
    return {first: rest for first, *rest in table_rows((DOCS / page).read_text("utf-8"), *head)}


def ok_of(run: str) -> list[dict]:
    """The records of a run that are ok."""
    lines = (RESULTS / run / "records.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["status"] == "ok"]


#: The parts of the loaded run of each length.
LOADED = {f"{tokens // 1024} K": parts for tokens, parts in docs_module("charts").PARTS.items()}


def shares_of_limit(tokens: str) -> DataFrame:
    """The share of the limit of each case of a loaded run, with its mask, draw and kernel."""
    rows = Rows.read(RESULTS / "h200/dense/loaded").where(run=LOADED[tokens], status="ok")
    frame = rows.frame(("pattern", "seed", "direction", "half", "tflops"))
    return frame.assign(share=over_full(rows, "fa3+fa4", together=True).to_numpy())


def test_the_draws_of_32_k_tokens():
    records = [record for run in LOADED["32 K"] for record in ok_of(f"h200/dense/loaded/{run}")]
    draws = {(r["pattern"], r["seed"]): r for r in records}
    best = shares_of_limit("32 K").groupby(["pattern", "seed", "direction"])["share"].max()
    table = rows_of("dense.md", "mask", "first draw: tiles a row")
    assert len(table) == 6
    for pattern, cells in table.items():
        found = []
        for seed in (0, 1):
            record = draws[pattern, seed]
            mask = masks.sample(pattern, 32768, lengths=record["lengths"], seed=seed, **record["factors"])
            assert mask.digest == record["mask_digest"]
            tiles = mask.blocks(128, 128).by_query
            count = int(tiles.num_full) + int(tiles.num_partial)
            shares = int(tiles.num_partial) / count, *(best[pattern, seed, way] for way in ("forward", "backward"))
            found += [f"{count / 256:.0f}", *(f"{share:.0%}".replace("%", " %") for share in shares)]
        assert cells == found, pattern


def test_which_masks_miss_their_aims():
    """The table names the masks of which the kernel with the most TFLOP/s, by medians over draws, is below the aim."""
    table = rows_of("dense.md", "tokens, direction", "aim")
    assert len(table) == 2 * len(LOADED)
    for about, (aim, shown) in table.items():
        tokens, direction = about.split(", ")
        cases = shares_of_limit(tokens)
        cases = cases[cases["direction"] == direction]
        medians = cases.groupby(["pattern", "half"])[["tflops", "share"]].median().reset_index()
        best = medians.loc[medians.groupby("pattern")["tflops"].idxmax()]
        missed = set(best.loc[best["share"] < float(aim.removesuffix(" %")) / 100, "pattern"])
        named = shown.replace("both sliding windows", "`full_sliding_window`, `causal_sliding_window`")
        assert set(re.findall(r"\w+_\w+", named)) == missed, about


def times_of(*runs: str) -> dict[tuple[str, str, str], float]:
    """The median seconds of each kernel, direction and mask. Of several measurements the last counts."""
    every = [record for run in runs for record in ok_of(f"h200/dense/{run}")]
    return {(r["kernel"], r["direction"], r["mask_digest"]): r["median"] for r in every}


def test_the_same_calls_of_8_k_tokens_in_other_runs():
    page, kernels = (DOCS / "dense.md").read_text("utf-8"), ("fa3", "fa4", "cudnn_flex")
    rested, earlier = times_of("run8k-32k"), times_of("loaded/run8k")
    loaded = times_of(*(f"loaded/{run}" for run in LOADED["8 K"]))
    longer = [
        median(loaded[call] / rested[call] for call in loaded.keys() & rested.keys() if call[:2] == (kernel, "forward"))
        for kernel in kernels
    ]
    shown = said(r"run8k-32k\): (\d+) % by `fa3`, (\d+) % by `fa4` and (\d+) % by `cudnn_flex`", page)
    assert shown == tuple(round(100 * (ratio - 1)) for ratio in longer)
    drawn = {r["mask_digest"] for r in ok_of("h200/dense/loaded/pairs8k") if r["pattern"] == "prefix_lm_document"}
    of_fa3, of_fa4, of_cudnn = ([earlier[k, "forward", m] / loaded[k, "forward", m] for m in drawn] for k in kernels)
    ends = [end(each) for each in (of_fa3, of_fa4 + of_cudnn) for end in (min, max)]
    pattern = (
        r"took ([\d.]+) to ([\d.]+) times as long by `fa3`, which merged layers then, and ([\d.]+) to ([\d.]+) times"
    )
    assert said(pattern, page) == tuple(round(ratio, 2) for ratio in ends)
    common = {call: earlier[call] / loaded[call] for call in loaded.keys() & earlier.keys()}
    short, others = (
        [ratio for call, ratio in common.items() if (loaded[call] < 1e-3) == is_short] for is_short in (True, False)
    )
    found = [x for some in (short, others) for x in (len(some), round(100 * (median(some) - 1)))]
    assert said(r"the (\d+) below a millisecond by (\d+) %, and the (\d+) others by (\d+) %", page) == tuple(found)


def test_backwards_that_were_measured_alone_and_in_a_pair():
    shown = said(
        r"up to ([\d.]+) % at 128 K, ([\d.]+) % at 32 K and ([\d.]+) % at 8 K, so",
        (DOCS / "dense.md").read_text("utf-8"),
    )
    for (tokens, runs), percent in zip(LOADED.items(), reversed(shown), strict=True):
        times = times_of(*(f"loaded/{run}" for run in runs))
        both = [
            (seconds, times[key])
            for (kernel, direction, mask), seconds in times.items()
            if "+" in kernel and (key := (kernel.partition("+")[2], direction, mask)) in times
        ]
        most = max(max(pair) / min(pair) for pair in both) - 1
        assert percent == pytest.approx(100 * most, abs=0.05), tokens


def test_unequal_blocks_over_uniform_ones():
    best = {}
    for r in ok_of("h200/sparse/unequal"):
        key = (r["heads_q"], r["heads_kv"], r["factors"].get("kept"), r["direction"], r["pattern"])
        best[key] = max(best.get(key, 0), r["tflops"])
    table = table_rows((DOCS / "sparse.md").read_text("utf-8"), "heads", "kept", "forward", "backward")
    assert len(table) == 6
    for heads, kept, *shares in table:
        about = (*map(int, heads.split(":")), float(kept.removesuffix(" %")) / 100)
        for direction, share in zip(("forward", "backward"), shares, strict=True):
            unequal, uniform = (best[*about, direction, f"{kind}_block_sparse"] for kind in ("variable", "uniform"))
            assert share == f"{unequal / uniform:.2f}", (heads, kept, direction)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.8])
def test_unequal_blocks_are_as_fast_as_their_tiles_are_full(kept):
    found = [r for r in ok_of("h100/sparse/newer") if r["kernel"] == "cudnn_flex" and r["seqlen"] == 32768]
    uniform = {
        r["direction"]: r["tflops"] for r in found if r["factors"].get("block") == 128 and r["factors"]["kept"] == 0.5
    }
    unequal = [r for r in found if r["pattern"] == "variable_block_sparse" and r["factors"]["kept"] == kept]
    ratios = {r["direction"]: r["tflops"] / uniform[r["direction"]] for r in unequal}
    full = median(r["tile_efficiency"] for r in unequal)
    cells = rows_of("sparse.md", "unequal blocks kept", "visible in tiles of 128 × 128")[
        f"{kept:.0%}".replace("%", " %")
    ]
    assert cells == [f"{x:.3f}" for x in (full, ratios["forward"], ratios["backward"])]


def test_launches_around_the_backward_at_128_k_tokens():
    parts = json.loads((RESULTS / "h200/dense/call_parts_32768.json").read_text("utf-8"))["rows"]
    others = median(row["others"] for row in parts if row["kernel"] == "fa4" and row["direction"] == "backward")
    (shown,) = said(r"take time too: ([\d.]+) ms at 32 K", (DOCS / "dense.md").read_text("utf-8"))
    assert shown == pytest.approx(others * 1e3, abs=0.005)


def test_host_time_of_a_call_on_a_gpu():
    rows = json.loads((RESULTS / "h200/core/host_cost.json").read_text("utf-8"))["rows"]
    found = {(r["mode"], r["pass"], r["kernel"]): f"{r['added']:.0f} ({r['function'] - r['bare']:.0f})" for r in rows}
    table = table_rows((DOCS / "costs.md").read_text("utf-8"), "mode", "pass", "`fa3`")
    assert {(mode, what): cells for mode, what, *cells in table} == {
        (mode, what): [found[mode, what, kernel] for kernel in ("fa3", "fa4", "cudnn_flex")] for mode, what, _ in found
    }


def test_host_time_by_the_way_in_which_shared_memory_is_found():
    rows = json.loads((RESULTS / "cpu/host_cost_memory.json").read_text("utf-8"))["rows"]
    table = rows_of("costs.md", "µs added")
    for version, cells in zip(("before", "since"), table.values(), strict=True):
        found = [
            median(r["added"] for r in rows if (r["version"], r["mode"], r["pass"]) == (version, mode, what))
            for mode in ("eager", "compiled")
            for what in ("inference", "forward", "backward")
        ]
        assert cells == [f"{x:.1f}" for x in found]
