"""Tables of docs/dense.md, docs/sparse.md and docs/costs.md that are written by hand, beside masks and records."""

from __future__ import annotations

import json
from statistics import median

import pytest

from longca import masks

from .docs_pages import DOCS, RESULTS, said, table_rows


def rows_of(page: str, *head: str) -> dict[str, list[str]]:
    """The rows of a page's table, by their first cell."""
    return {first: rest for first, *rest in table_rows((DOCS / page).read_text("utf-8"), *head)}


def ok_of(run: str) -> list[dict]:
    """The records of a run that are ok."""
    lines = (RESULTS / run / "records.jsonl").read_text("utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["status"] == "ok"]


def test_tiles_of_the_draws_of_32_k_tokens():
    draws = {(r["pattern"], r["seed"]): r for r in ok_of("h200/dense/loaded/run32k")}
    table = rows_of("dense.md", "mask", "first draw: tiles a row")
    assert len(table) == 4
    for pattern, cells in table.items():
        found = []
        for seed in (0, 1):
            record = draws[pattern, seed]
            mask = masks.sample(pattern, 32768, lengths=record["lengths"], seed=seed, **record["factors"])
            assert mask.digest == record["mask_digest"]
            tiles = mask.blocks(128, 128).by_query
            count = int(tiles.num_full) + int(tiles.num_partial)
            found += [f"{count / 256:.0f}", f"{int(tiles.num_partial) / count:.0%}".replace("%", " %")]
        assert cells == found, pattern


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
