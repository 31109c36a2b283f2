"""Tables of several ranks: in the terminal, as Markdown, and apart from those of one device."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from longca_bench.reports.charts import charts
from longca_bench.reports.comparison import compare_runs
from longca_bench.reports.comparison_table import comparison_json, print_comparison
from longca_bench.reports.markdown import markdown
from longca_bench.reports.rank_cells import rank_tables
from longca_bench.reports.run_source import Run
from longca_bench.reports.run_table import print_run

from .runs import ENVIRONMENT, record


def shared(strategy="usp", placement="auto", mesh="ring=2,ulysses=2", **fields):
    about = {
        "placed": "zigzag" if placement == "auto" else placement, "world_size": 4, "mesh": mesh,
        "communication": {"all": {"calls": 2, "bytes": 10, "seconds": 1e-4, "algbw": 3.0, "busbw": 2.25}},
        "hidden": 0.75, "area_imbalance": 1.0, "time_imbalance": 1.5, "alone_seconds": 0.9e-3, "peak_bytes": 2**31,
        "abreast_seconds": 0.95e-3,
        "findings": ({"tensor": "out", "error": 1.5e-3}, {"tensor": "lse", "error": 1.0}),
        "alone_findings": ({"tensor": "out", "error": 1.2e-3},),
    }  # fmt: skip
    return record(strategy=strategy, placement=placement, **{**about, **fields})


RECORDS = (
    record("sdpa"),
    shared(),
    shared("ring_p2p", "zigzag", "ring=4", time=2e-3),
    shared("ring_p2p", "contiguous", "ring=4", status="crashed", message="rank 1 of 4: gone", communication={}),
    shared("ring_p2p", "balanced", "ring=4", status="unsupported", message="it shatters."),
    shared("usp", "balanced", status="unsupported", message="it shatters."),
)


def printed(width):
    out = StringIO()
    print_run(Console(file=out, width=width), RECORDS)
    return out.getvalue()


def test_the_terminal_shows_what_fits():
    wide, narrow = printed(160), printed(80)
    for word in ("usp 2×2", "auto: zigzag", "75%", "90%", "95%", "2.25", "1.5e-03", "1.2e-03", "CRASHED", "4 ranks"):
        assert word in wide
    assert "1.5e-03" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    assert "of alone" in narrow
    for text in (wide, narrow):
        flat = " ".join(text.split())
        assert "naive with ring_p2p balanced, usp balanced: it shatters." in flat
        assert "naive with ring_p2p contiguous, ring=4, 1 case: rank 1 of 4: gone" in flat
        assert flat.count("sdpa") == 1, "one device has a table of its own"


def test_the_page_has_every_column():
    page = markdown(Run(Path(), RECORDS, ENVIRONMENT))
    assert "## Several ranks" in page
    row = next(line for line in page.splitlines() if line.startswith("| usp 2×2"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:3] == ["usp 2×2", "auto: zigzag", "naive"]
    assert cells[3] == "**1.00**"
    assert cells[5:] == ["90%", "75%", "1.00", "1.50", "95%", "2.25", "2.00", "1.5e-03", "1.2e-03"]
    assert "it shatters" in page


def test_masks_have_tables_of_their_own():
    assert [len(table.rows) for table in rank_tables(RECORDS)] == [3]
    assert len(rank_tables([shared(), shared(pattern="full"), shared(world_size=2), shared(direction="backward")])) == 4
    assert not rank_tables([record(), shared(status="unsupported")])


def test_meshes_of_another_order_are_told_apart():
    (table,) = rank_tables([shared(), shared(mesh="ulysses=2,ring=2"), shared("ring_p2p", mesh="ring=4")])
    assert [row.cells[0] for row in table.rows] == ["usp ring=2,ulysses=2", "usp ulysses=2,ring=2", "ring_p2p"]


def test_charts_are_of_one_device():
    (chart,) = charts(RECORDS)
    assert [r.kernel for r in chart.records] == ["sdpa"]


def test_runs_are_compared_strategy_by_strategy():
    a = Run(Path("a"), RECORDS, ENVIRONMENT)
    b = Run(Path("b"), (RECORDS[1], shared("ring_p2p", "zigzag", "ring=4", time=1e-3)), ENVIRONMENT)
    found = compare_runs(a, b)
    assert [(pair.a.strategy, round(pair.ratio.value, 2)) for pair in found.pairs] == [("usp", 1.0), ("ring_p2p", 2.0)]
    assert comparison_json(found)["pairs"][1]["mesh"] == "ring=4"
    out = StringIO()
    print_comparison(Console(file=out, width=120), found)
    assert "naive with ring_p2p zigzag, ring=4" in out.getvalue()
