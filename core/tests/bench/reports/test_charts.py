import pytest
from matplotlib.image import imread

from longca_bench.reports.charts import chart_frame, draw_charts
from longca_bench.reports.rows import Rows

from .runs import record

LENGTHS = (1024, 4096, 8192)


def test_a_case_has_its_interval_and_only_ok_counts():
    frame = chart_frame(Rows.of([record(), record(seqlen=4096, status="wrong"), record(status="suspect")]))
    assert frame["ok"].tolist() == [True, False, False]
    first = frame.iloc[0]
    assert 0.99 * first["speed"] < first["slow"] < first["speed"] < first["fast"] < 1.01 * first["speed"]


@pytest.mark.parametrize(
    ("records", "names"),
    [
        ([record(status="oom"), record("far", status="unsupported")], []),
        ([record(n, message="$x$") for n in ("$a", "<b>", "\x1b[31m")], ["throughput-forward.png"]),
        (
            [
                record(f"kernel_{i}", n, peak_bytes=n * i, direction=direction)
                for i in range(12)
                for n in LENGTHS
                for direction in ("forward", "backward")
            ],
            [f"{name}-{way}.png" for way in ("forward", "backward") for name in ("throughput", "memory")],
        ),
        (
            [record(), record(strategy="usp", placement="auto", world_size=2)],
            ["throughput-forward-1.png", "throughput-forward-2.png"],
        ),
    ],
    ids=["failed", "names", "many", "devices"],
)
def test_every_run_can_be_drawn(tmp_path, records, names):
    paths = draw_charts(Rows.of(records), tmp_path)
    assert [path.name for path in paths] == names
    assert all(imread(path).shape[1] > 400 for path in paths)
