"""Views of predictions, on small records that are made by hand."""

from __future__ import annotations

import json

from longca_bench.reports.render_markdown import markdown_of
from longca_bench.reports.rows import Rows
from longca_bench.reports.views import tables


def part(view, path, under="rows"):
    return markdown_of(tables(view, Rows.of_benchmark(path, under)))


def written(folder, found):
    path = folder / "record.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def test_errors_and_regrets_by_name(tmp_path):
    row = {"calls": 8, "unpredicted": 1, "median": 0.031, "p90": 0.12, "max": 1.5}
    path = written(tmp_path, {
        "errors": {"all": {**row, "unpredicted": 0}, "ulysses": row}, "coverage": 0.88,
        "regret": {"training": {"problems": 4, "mean": 0.01, "p95": 0.02, "max": 0.03}},
    })  # fmt: skip
    assert "| ulysses | 8 | 1 | 3.1% | 12.0% | 150% |" in part("predictions", path, "errors")
    assert part("predictions", path, "regret").splitlines()[2] == "| training | 4 | 1.0% | 2.0% | 3.0% |"
    assert part("predictions", path, "").splitlines()[-1] == "| 88.0% |"


def test_the_calls_that_are_furthest_off(tmp_path):
    path = tmp_path / "calls.csv"
    head = "kernel,direction,pattern,seqlen,measured,predicted"
    path.write_text(
        f"{head}\nfa3,forward,full,1024,1,nan\nfa3,forward,full,2048,10,5\nfa4,forward,full,4096,1,4\n", "utf-8"
    )
    lines = part("predictions-worst", path).splitlines()
    assert lines[2:] == ["| `fa4` | forward | `full` | 4096 | 4 ms | 1 ms | 0.250 × |",
                         "| `fa3` | forward | `full` | 2048 | 5 ms | 10 ms | 2.00 × |"]  # fmt: skip


def test_problems_that_were_measured_after_they_were_predicted(tmp_path):
    time = {"predicted": 0.0102, "measured": 0.01, "error": 0.02}
    rows = [
        {
            "name": "causal 3000",
            "ways": [{"title": "fa3", "times": {"total": time}}],
            "fastest": "fa4",
            "regret": 0.013,
        },
        {"name": "x", "message": "no"},
    ]
    lines = part("predictions-problems", written(tmp_path, {"problems": rows}), "problems").splitlines()
    assert lines[2] == "| causal 3000 | `fa3` | 10.2 ms | 10 ms | +2.0% | `fa4` | 1.3% |"
    assert lines[3].startswith("| x | `no` |")
