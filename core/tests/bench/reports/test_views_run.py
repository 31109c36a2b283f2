"""The views of whole runs: what stands in which cell, and what is told of cases without a time."""

import pytest

from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import Run
from longca_bench.reports.table import Mark
from longca_bench.reports.views import VIEWS, tables

from .runs import ENVIRONMENT, record, write_run


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def heads(table):
    return [head.text for head in table.heads]


def sparse(block, kept, **fields):
    factors = {"block": block, "kept": kept}
    return record(pattern="uniform_block_sparse", factors=factors, mask_digest=f"{block}-{kept}", **fields)


def shared(strategy="usp", placement="auto", mesh="ring=2,ulysses=2", **fields):
    about = {
        "placed": "zigzag" if placement == "auto" else placement, "world_size": 4, "mesh": mesh,
        "communication": {"all": {"calls": 2, "bytes": 10, "seconds": 1e-4, "algbw": 3.0, "busbw": 2.25}},
        "hidden": 0.75, "area_imbalance": 1.0, "time_imbalance": 1.5, "alone_seconds": 0.9e-3, "peak_bytes": 2**31,
        "abreast_seconds": 0.95e-3,
        "findings": ({"tensor": "out", "error": 1.5e-3}, {"tensor": "lse", "error": 1.0}),
        "alone_findings": ({"tensor": "out", "error": 1.2e-3},),
    }  # fmt: skip
    case = f"{strategy}-{placement}-{mesh}-{fields.get('direction')}-{fields.get('world_size')}"
    return record(strategy=strategy, placement=placement, **{"case": case, **about, **fields})


RANKS = (
    record("sdpa"),
    shared(),
    shared("ring_p2p", "zigzag", "ring=4", time=2e-3),
    shared("ring_p2p", "contiguous", "ring=4", status="crashed", message="rank 1 of 4: gone", communication={}),
    shared("ring_p2p", "balanced", "ring=4", status="unsupported", message="it shatters."),
    shared("usp", "balanced", status="unsupported", message="it shatters."),
)


def test_the_fastest_of_a_mask_is_marked_and_named():
    (table,) = tables("results", Rows.of([record(), record("sdpa", time=5e-4), record("flex", status="error")]))
    assert table.title == "forward: ms and GFLOP/s"
    assert heads(table) == ["mask", "tokens", "dense", "tiles", "naive", "sdpa", "flex", "fastest"]
    assert texts(table) == [["causal", "1 K", "50.0%", "25%", "1.00 / 105", "0.500 / 210", "ERROR", "sdpa"]]
    assert [cell.mark for cell in table.rows[0][4:7]] == [Mark.NONE, Mark.BEST, Mark.FAILED]
    suspect = record("quick", status="suspect", time=1e-9)
    (table,) = tables(
        "results", Rows.of([record(), record("sdpa", time=1.0001e-3), record("flex", time=2e-3), suspect])
    )
    assert table.rows[0][-1].text == "naive = sdpa"
    assert (table.rows[0][-2].text[:10], table.rows[0][-2].mark) == ("0.0000? / ", Mark.NONE)


def test_a_kernel_that_takes_nothing_has_no_column_and_its_reason_stands_once():
    reason = "far takes full; a {} of {} tokens is none of these."
    records = [
        record("near"),
        record("far", status="unsupported", message=reason.format("causal", 1024)),
        record("far", status="unsupported", pattern="full", message=reason.format("full", 2048)),
    ]
    (table,) = tables("results", Rows.of(records))
    assert heads(table)[-1] == "near"
    (refused,) = tables("not-measured", Rows.of(records))
    assert texts(refused) == [["unsupported", "far", "causal, full", "2", records[1].message]]
    out = record("sdpa", status="oom", message="no memory", advice="take less")
    (table,) = tables("not-measured", Rows.of([*records, out]))
    assert texts(table)[0] == ["oom", "sdpa", "causal", "1", "no memory", "take less"], "failures come first"


def test_lines_are_told_apart_by_factors_and_by_shapes_that_vary():
    (table,) = tables("results", Rows.of([sparse(64, 0.2), sparse(64, 0.5), sparse(128, 0.5), record()]))
    assert [row[0] for row in texts(table)] == [
        "uniform_block_sparse 64, 20 %", "uniform_block_sparse 64, 50 %", "uniform_block_sparse 128, 50 %", "causal",
    ]  # fmt: skip
    assert "heads" not in heads(table)
    records = [record(), record(heads_kv=4), record(seed=1), record(seed=1, heads_kv=4)]
    (table,) = tables("results", Rows.of(records))
    assert heads(table)[2:4] == ["heads", "seed"]
    assert [row[2:4] for row in texts(table)] == [["4:2", "0"], ["4:4", "0"], ["4:2", "1"], ["4:4", "1"]]


def test_strategies_have_a_table_for_each_mask_and_every_column():
    rows = Rows.of(RANKS)
    (table,) = tables("strategies", rows)
    assert table.title == "causal forward, 1 K tokens, 4 ranks, 4:2×32 float32: ms and GFLOP/s"
    first, _, crashed = texts(table)
    assert first[:3] == ["usp 2×2", "auto: zigzag", "naive"]
    assert first[5:] == ["0.90", "75%", "1.00", "1.50", "0.95", "2.25", "2.00", "1.5e-03", "1.2e-03"]
    assert crashed[:4] == ["ring_p2p", "contiguous", "naive", "CRASHED"]
    assert table.rows[0][3].mark is Mark.BEST
    (results,) = tables("results", rows)
    assert heads(results)[-1] == "sdpa", "one device has a table of its own"
    others = [shared(), shared(pattern="full"), shared(world_size=2), shared(direction="backward")]
    assert len(tables("strategies", Rows.of(others))) == 4
    assert tables("strategies", Rows.of([record(), shared(status="unsupported")])) == []


def test_meshes_of_another_order_are_told_apart():
    rows = Rows.of([shared(), shared(mesh="ulysses=2,ring=2"), shared("ring_p2p", mesh="ring=4")])
    (table,) = tables("strategies", rows)
    assert [row[0] for row in texts(table)] == ["usp ring=2,ulysses=2", "usp ulysses=2,ring=2", "ring_p2p"]


def test_environments_say_which_runs_differ(tmp_path):
    other = {**ENVIRONMENT, "python": "3.12.0"}
    runs = [Run(tmp_path / name, (record(),), about) for name, about in (("a", ENVIRONMENT), ("b", other))]
    (table,) = tables("environment", Rows.of_runs(runs))
    assert ["python", "3.12.0", "b"] in texts(table)
    assert ["packages.torch", "2.13.0", "all"] in texts(table)
    (one,) = tables("environment", Rows.of_runs(runs[:1]))
    assert ["device.name", "Some CPU"] in texts(one)


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_takes_any_run(tmp_path, view):
    run = write_run(tmp_path / "run", [record(), record("sdpa"), record("flex", status="oom")])
    assert all(table.heads for table in tables(view, Rows.read(run)))
