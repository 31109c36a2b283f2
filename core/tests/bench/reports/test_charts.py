import re

import pytest
from matplotlib.image import imread

from longca_bench.reports import charts as module
from longca_bench.reports.charts import chart_files, charts, draw_charts
from longca_bench.reports.rows import Rows

from .runs import record

LENGTHS = (1024, 4096, 8192)


def of(*records):
    """The charts of some records."""
    return charts(Rows.of(records))


def drawn(*records):
    """The Vega-Lite specification of the only chart of some records, and the values of its parts."""
    (chart,) = of(*records)
    spec = module._chart(chart, list(dict.fromkeys(each.kernel for each in records))).to_dict()
    return spec, [value for values in spec["datasets"].values() for value in values]


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


def test_masks_of_other_factors_have_charts_of_their_own_and_the_last_record_of_a_case_counts():
    found = of(record(mask_digest="a" * 16), record("sdpa", mask_digest="a" * 16), record(mask_digest="b" * 16))
    assert [len(chart) for chart in found] == [2, 1]
    (chart,) = of(record(time=1.0), record(), record("sdpa"))
    assert list(chart["tflops"]) == [record().tflops] * 2

    def sparse(kept, seqlen):
        factors = {"block": 64, "kept": kept}
        return record(pattern="uniform_block_sparse", seqlen=seqlen, factors=factors, mask_digest=f"{seqlen}-{kept}")

    # The second length was measured in the other order.
    found = of(sparse(0.2, 1024), sparse(0.5, 1024), sparse(0.5, 4096), sparse(0.2, 4096))
    assert [{factors["kept"] for factors in chart["factors"]} for chart in found] == [{0.2}, {0.5}]
    assert chart_files(found)[0] == "uniform_block_sparse-forward-block_64_20_percent_kept.png"


def test_a_line_has_its_interval_and_breaks_where_a_length_failed_or_is_suspect():
    spec, values = drawn(record(), record(seqlen=4096, status="wrong"), record(seqlen=8192, status="suspect"))
    name = spec["vconcat"][0]["layer"][0]["data"]["name"]
    assert [value["speed"] is not None for value in spec["datasets"][name]] == [True, False, False]
    first = values[0]
    assert 0.99 * first["speed"] < first["slow"] < first["speed"] < first["fast"] < 1.01 * first["speed"]
    assert "WRONG" in [value.get("word") for value in values]
    assert any("Hollow: suspect" in line for line in spec["title"]["subtitle"])


@pytest.mark.parametrize("status", ["unsupported", "skipped"])
def test_a_kernel_that_was_not_tried_is_named_and_not_drawn(status):
    spec, _ = drawn(record(), record("far", status=status))
    assert spec["vconcat"][0]["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["naive"]
    assert f"{status.capitalize()}: far" in spec["title"]["subtitle"]
    spec, values = drawn(record(peak_bytes=2**30), record(seqlen=4096))
    assert (len(spec["vconcat"]), {value["peak"] for value in values}) == (2, {2**30, None})


@pytest.mark.parametrize(
    "records",
    [
        [record(status="oom"), record("far", status="unsupported")],
        [record(n, seqlen=64, message="$x$") for n in ("$a", "<b>", "\x1b[31m")],
        [record(f"kernel_{i}", n, peak_bytes=n * i) for i in range(12) for n in LENGTHS],
    ],
    ids=["failed", "names", "many"],
)
def test_every_run_can_be_drawn(tmp_path, records):
    (path,) = draw_charts(Rows.of(records), tmp_path, scale=1.0)
    assert imread(path).shape[1] > 400
