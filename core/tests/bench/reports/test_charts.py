import re
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from longca_bench.reports import chart_axes
from longca_bench.reports.charts import _caption, _title, chart_files, charts, draw_charts
from longca_bench.reports.rows import Rows

from .runs import record

LENGTHS = (1024, 4096, 8192)
#: What eyes make of linear RGB (Machado et al., IEEE TVCG 15, 2009, severity 1).
SIGHTS = {
    "all colours": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
}


def of(*records):
    """The charts of some records."""
    return charts(Rows.of(records))


@pytest.fixture
def axes():
    return Figure().add_subplot()


def test_a_chart_a_mask_and_direction():
    found = of(
        *(
            record(kernel, n, pattern=pattern, direction=direction)
            for pattern in ("causal", "full")
            for direction in ("forward", "backward")
            for kernel in ("naive", "sdpa")
            for n in LENGTHS
        )
    )
    assert chart_files(found) == [
        "causal-forward.png", "causal-backward.png", "full-forward.png", "full-backward.png",
    ]  # fmt: skip
    assert {len(chart) for chart in found} == {6}


def test_names_tell_what_varies_and_hold_safe_characters_alone():
    names = chart_files(of(record(seed=0), record(seed=1), record(seed=1, lengths="../a: b.csv", pattern="../../x\n")))
    assert names[:2] == ["causal-forward-auto-seed0.png", "causal-forward-auto-seed1.png"]
    assert all(re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*\.png", name) for name in names)
    same = of(record(pattern="a b"), record(pattern="a/b"), record(pattern="A b"))
    assert chart_files(same) == ["a_b-forward.png", "a_b-forward-2.png", "a_b-forward-3.png"]


def test_masks_of_other_factors_are_on_charts_of_their_own():
    found = of(record(mask_digest="a" * 16), record("sdpa", mask_digest="a" * 16), record(mask_digest="b" * 16))
    assert [len(chart) for chart in found] == [2, 1]
    assert len(set(chart_files(found))) == 2


def test_the_last_record_of_a_case_counts():
    (chart,) = of(record(time=1.0), record(), record("sdpa"))
    assert list(chart["tflops"]) == [record().tflops] * 2


def test_factors_have_charts_of_their_own_that_name_them():
    def sparse(kept, seqlen):
        factors = {"block": 64, "kept": kept}
        return record(pattern="uniform_block_sparse", seqlen=seqlen, factors=factors, mask_digest=f"{seqlen}-{kept}")

    # The second length was measured in the other order.
    found = of(sparse(0.2, 1024), sparse(0.5, 1024), sparse(0.5, 4096), sparse(0.2, 4096))
    assert [{factors["kept"] for factors in chart["factors"]} for chart in found] == [{0.2}, {0.5}]
    assert chart_files(found)[0] == "uniform_block_sparse-forward-block_64_20_percent_kept.png"
    assert _title(found[1]) == "Uniform block sparse, block 64, 50 % kept, forward"


def test_a_line_breaks_where_a_length_failed_and_what_is_suspect_is_hollow(axes):
    (chart,) = of(record(), record(seqlen=4096, status="wrong"), record(seqlen=8192, status="suspect"))
    chart_axes.draw_throughput(axes, chart, ["naive"])
    line = axes.containers[0].lines[0]
    assert [y == y for y in line.get_ydata()] == [True, False, False]
    hollow = axes.lines[-1]
    assert (list(hollow.get_xdata()), hollow.get_markerfacecolor()) == ([8192], "white")


@pytest.mark.parametrize(("samples", "known"), [(record().samples, True), ((1e-3,), False)])
def test_error_bars_are_the_interval_of_the_median(axes, samples, known):
    (chart,) = of(record(samples=samples))
    chart_axes.draw_throughput(axes, chart, ["naive"])
    (((_, low), (_, high)),) = axes.containers[0].lines[2][0].get_segments()
    (height,) = axes.containers[0].lines[0].get_ydata()
    assert (0.99 * height < low < height < high < 1.01 * height) if known else (low == height == high)


@pytest.mark.parametrize(
    ("status", "shown"),
    [("oom", "OOM"), ("wrong", "WRONG"), ("timeout", "TIMEOUT"), ("crashed", "CRASHED"), ("error", "ERROR")],
)  # fmt: skip
def test_failures_are_drawn_with_their_word(axes, status, shown):
    chart_axes.draw_failures(axes, *of(record(status=status)), ["naive"])
    assert [text.get_text() for text in axes.texts] == [shown]
    assert len(axes.lines) == 1


@pytest.mark.parametrize(("status", "told"), [("unsupported", "Unsupported: far"), ("skipped", "Skipped: far")])
def test_what_was_not_tried_is_said_and_not_drawn(axes, status, told):
    (chart,) = of(record(), record("far", status=status))
    assert chart_axes.failures(chart).empty
    chart_axes.draw_throughput(axes, chart, ["naive", "far"])
    assert axes.get_legend_handles_labels()[1] == ["naive"]
    assert told in " ".join(_caption(chart))


def test_known_failures_have_markers_of_their_own():
    assert len(set(chart_axes._FAILURES.values())) == len(chart_axes._FAILURES)


def test_no_two_kernels_look_alike():
    kernels = [str(index) for index in range(182)]
    looks = [chart_axes.look_of(kernel, kernels) for kernel in kernels]
    assert len(set(looks)) == 182
    assert len({colour for colour, _ in looks[:14]}) == 14
    assert len({marker for _, marker in looks[:13]}) == 13


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_are_told_apart(sight):
    seen = [_oklab(np.array(SIGHTS[sight]) @ _linear(colour)) for colour in chart_axes._COLOURS]
    least = min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))
    assert least > (0.12 if sight == "all colours" else 0.075)


def _linear(colour):
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _oklab(linear):
    """Ottosson, "A perceptual color space for image processing", 2020: distances are as large as they look."""
    cones = [[0.41222147, 0.53633254, 0.051446], [0.2119035, 0.68069955, 0.107397], [0.08830246, 0.28171884, 0.6299787]]
    lab = [[0.2104543, 0.7936178, -0.0040720], [1.9779985, -2.4285922, 0.4505937], [0.025904, 0.7827718, -0.8086758]]
    return np.array(lab) @ np.cbrt(np.array(cones) @ np.clip(linear, 0, 1))


def test_memory_is_drawn_where_it_is_known(axes):
    (chart,) = of(record(peak_bytes=2**20, metadata_bytes=2**10), record(seqlen=4096), record("sdpa", metadata_bytes=0))
    chart_axes.draw_memory(axes, chart, ["naive", "sdpa"])
    drawn = [line.get_linestyle() for line in axes.lines if len(line.get_xdata())]
    assert drawn == ["-", "--"]


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
    (path,) = draw_charts(Rows.of(records), tmp_path, dpi=60)
    assert imread(path).shape[1] == round(4.6 * 60)
