import re

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from longca.reports import chart_axes
from longca.reports.chart_picture import _caption
from longca.reports.charts import chart_files, charts, draw_charts
from longca.reports.run_source import Run

from .runs import record

LENGTHS = (1024, 4096, 8192)


def axes():
    return Figure().add_subplot()


def words(target):
    return [text.get_text() for text in target.texts]


def test_a_chart_a_mask_and_direction():
    found = charts(
        record(kernel, n, pattern=pattern, direction=direction)
        for pattern in ("causal", "full")
        for direction in ("forward", "backward")
        for kernel in ("naive", "sdpa")
        for n in LENGTHS
    )
    assert chart_files(found) == [
        "causal-forward.png", "causal-backward.png", "full-forward.png", "full-backward.png",
    ]  # fmt: skip
    assert {len(chart.records) for chart in found} == {6}


def test_names_tell_what_varies_and_hold_safe_characters_alone():
    found = charts([record(seed=0), record(seed=1), record(seed=1, lengths="../mine: own.csv", pattern="../../x\n")])
    names = chart_files(found)
    assert names[:2] == ["causal-forward-auto-seed0.png", "causal-forward-auto-seed1.png"]
    assert all(re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*\.png", name) for name in names)
    same = charts([record(pattern="a b"), record(pattern="a/b"), record(pattern="A b")])
    assert chart_files(same) == ["a_b-forward.png", "a_b-forward-2.png", "a_b-forward-3.png"]


def test_masks_of_other_factors_are_on_charts_of_their_own():
    found = charts([record(mask_digest="a" * 16), record("sdpa", mask_digest="a" * 16), record(mask_digest="b" * 16)])
    assert [len(chart.records) for chart in found] == [2, 1]
    assert len(set(chart_files(found))) == 2


def test_a_line_breaks_where_a_length_failed_and_what_is_suspect_is_hollow():
    records = [record(seqlen=1024), record(seqlen=4096, status="wrong"), record(seqlen=8192, status="suspect")]
    target = axes()
    chart_axes.draw_throughput(target, records, ["naive"], ("TFLOP/s", 1.0))
    line = target.containers[0].lines[0]
    assert [y == y for y in line.get_ydata()] == [True, False, False]
    hollow = target.lines[-1]
    assert (list(hollow.get_xdata()), hollow.get_markerfacecolor()) == ([8192], "white")


def test_error_bars_are_the_interval_of_the_median():
    below, above = chart_axes._reach(record())
    assert 0 < below < 0.01 * record().tflops
    assert 0 < above < 0.01 * record().tflops
    assert chart_axes._reach(record(samples=(1e-3,))) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("status", "shown"),
    [("oom", "OOM"), ("wrong", "WRONG"), ("timeout", "TIMEOUT"), ("crashed", "CRASHED"), ("error", "ERROR"),
     ("a-later-one", "A-LATER-ONE")],
)  # fmt: skip
def test_failures_are_drawn_with_their_word(status, shown):
    target = axes()
    chart_axes.draw_failures(target, [record(status=status)], ["naive"])
    assert words(target) == [shown]
    assert len(target.lines) == 1


@pytest.mark.parametrize(("status", "told"), [("unsupported", "Unsupported: far"), ("skipped", "Skipped: far")])
def test_what_was_not_tried_is_said_and_not_drawn(status, told):
    records = [record(), record("far", status=status)]
    assert chart_axes.failing(records) == []
    assert told in " ".join(_caption(records))


def test_known_failures_have_markers_of_their_own():
    assert len(set(chart_axes._FAILURES.values())) == len(chart_axes._FAILURES)
    kernels = [str(index) for index in range(64)]
    assert len({chart_axes.look_of(kernel, kernels) for kernel in kernels}) == 64


def test_memory_is_drawn_where_it_is_known():
    known = [record(peak_bytes=2**20, metadata_bytes=2**10), record(seqlen=4096)]
    assert chart_axes.has_memory(known)
    assert not chart_axes.has_memory([record(), record(metadata_bytes=0)])
    target = axes()
    chart_axes.draw_memory(target, known, ["naive"])
    assert [line.get_linestyle() for line in target.lines] == ["-", "--"]


@pytest.mark.parametrize(
    "records",
    [
        [record()],
        [record(status="oom")],
        [record(status="unsupported")],
        [record(n, seqlen=64, message="$x$") for n in ("$a", "$b$", "\x1b[31m")],
        [record(f"kernel_{i}", n, peak_bytes=n * i) for i in range(12) for n in LENGTHS],
    ],
    ids=["one", "failed", "unsupported", "names", "many"],
)
def test_every_run_can_be_drawn(tmp_path, records):
    (path,) = draw_charts(Run(tmp_path, tuple(records), None), tmp_path, dpi=60)
    assert imread(path).shape[1] == round(4.6 * 60)
