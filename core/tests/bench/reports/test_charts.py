import re

import pytest
from matplotlib.image import imread

from longca_bench.reports.charts import chart_frame, draw_view
from longca_bench.reports.rows import Rows
from longca_bench.reports.views import drawn_view

from .runs import record, rows_of

LENGTHS = (1024, 4096, 8192)


def test_a_case_has_its_interval_and_only_ok_counts():
    frame = chart_frame(Rows.of([record(), record(seqlen=4096, status="wrong"), record(status="suspect")]))
    assert frame["ok"].tolist() == [True, False, False]
    first = frame.iloc[0]
    assert 0.99 * first["speed"] < first["slow"] < first["speed"] < first["fast"] < 1.01 * first["speed"]


@pytest.mark.parametrize(
    "records",
    [
        [record(n, message="$x$") for n in ("$a", "<b>", "\x1b[31m", "it's {seqlen}")],
        [
            record(f"kernel_{i}", n, peak_bytes=n * i, direction=direction)
            for i in range(12)
            for n in LENGTHS
            for direction in ("forward", "backward")
        ],
        [record(), record(strategy="usp", placement="auto", world_size=2, mesh="ring=2")],
    ],
    ids=["names", "many", "ranks"],
)
def test_every_run_can_be_drawn(tmp_path, records):
    rows = Rows.of(records)
    for view in ("throughput", None, "results", "strategies", "costs"):
        for path in draw_view(drawn_view(view, rows), rows, tmp_path / f"{view}.png"):
            assert imread(path).shape[1] > 400
    assert draw_view(drawn_view("throughput", rows), Rows.of([record(status="oom")]), tmp_path / "no.png") == []


def test_a_picture_has_the_cells_of_its_view_and_lines_within_a_run(tmp_path):
    busy = {"machine": {"busy": True, "why": "3 cores"}}
    rows = rows_of([record("a", **busy), record("a", 4096), record("b", 4096)], [record("a", 8192)])
    (path,) = draw_view(drawn_view("throughput", rows), rows, tmp_path / "x.svg")
    marks = re.findall(r'aria-roledescription="(point|line mark)"([^>]*)', text := path.read_text("utf-8"))
    assert "forward, 4:2 heads of 32, Some CPU<" in text
    assert {">hollow: the machine was busy<", ">causal<", ">8 K<"} <= set(re.findall(">[^<>]+<", text))
    assert [kind for kind, _ in marks] == ["line mark"] * 3 + ["point"] * 4
    assert ['fill-opacity="0"' in about for _, about in marks[3:]] == [True, False, False, False]
    lines = [re.search(r' d="M[^LZ]*(L?)', about)[1] for _, about in marks[:3]]
    assert lines == ["L", "", ""], "one kernel has two lengths in one run"
