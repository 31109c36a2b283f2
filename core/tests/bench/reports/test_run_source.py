"""Runs whose records or folders are odd: a line that tables cannot hold is left out."""

import json
import os
import subprocess
import sys

import pytest

from longca_bench.reports.formats import FORMATS, write_reports
from longca_bench.reports.html.payload import payload
from longca_bench.reports.render_markdown import page_of
from longca_bench.reports.rows import Rows
from longca_bench.reports.run_source import open_run, unreached
from longca_bench.reports.views import tables

from .runs import ENVIRONMENT, record, write_run

#: The change of a field, and the complaint.
HUGE = 10**400
CHANGES = [
    *(
        ({name: HUGE}, f"{name}: Input should be less than")
        for name in (
            *("schema_version", "suite_version", "seqlen", "seed", "heads_q", "heads_kv", "head_dim", "area", "flops"),
            *("metadata_bytes", "peak_bytes", "judge_bytes", "world_size"),
        )
    ),
    ({"rank_peak_bytes": [HUGE]}, "rank_peak_bytes.0: Input should be less than"),
    ({"sent_bytes": {"p2p": [HUGE]}}, "sent_bytes.p2p.0: Input should be less than"),
    ({"gpu": {"power": HUGE}}, "gpu: a number of about 400 digits does not fit into 64 bits"),
    ({"machine": {"cores": [HUGE]}}, "machine: a number of about 400 digits does not fit into 64 bits"),
    (
        {"findings": [{"tensor": "out", "passed": True, "error": 0.0, "limit": HUGE}]},
        "findings: a number of about 400 digits does not fit into 64 bits",
    ),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[next(iter(change)) for change, _ in CHANGES])
def test_a_number_that_no_table_holds_is_left_out(tmp_path, change, said):
    folder = write_run(tmp_path / "run", [record("sdpa")])
    line = json.dumps({**record().model_dump(mode="json"), **change})
    with (folder / "records.jsonl").open("a") as file:
        file.write(f"{line}\n")
    run = open_run(folder)
    assert [each.kernel for each in run.records] == ["sdpa"]
    (note,) = run.notes
    assert f"line 2: {said}" in note


def test_pairs_and_operations_may_exceed_64_bits(tmp_path):
    large = record(status="unsupported", area=2**64, flops=2**70)
    rows = Rows.read(write_run(tmp_path / "run", [large]))
    assert (list(rows["area"]), list(rows["flops"])) == ([2.0**64], [2.0**70])


@pytest.mark.parametrize("name", ["run.json", "run.csv"])
def test_a_folder_named_as_a_file_is_a_run(tmp_path, name):
    folder = write_run(tmp_path / name, [record("sdpa")])
    assert list(Rows.read(folder)["kernel"]) == ["sdpa"]
    assert len(Rows.read(folder, folder / "records.jsonl")) == 2


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "terminal"])
def test_a_folder_may_have_any_name(tmp_path, name):
    folder = write_run(tmp_path / os.fsdecode(b"run \xff"), [record("sdpa")])
    rows = Rows.read(folder, write_run(tmp_path / "other", [record()], {**ENVIRONMENT, "python": "3"}))
    assert list(rows["run"]) == ["run \\udcff", "other"]
    assert list(rows["folder"]) == [f"{tmp_path}/run \\udcff", f"{tmp_path}/other"]
    (file, *_) = write_reports(rows, folder / "report", [name])
    assert file.stat().st_size
    for view in ("results", "not-measured", "environment", "whole", "throughput"):
        for table in tables(view, rows):
            table.frame().to_csv(tmp_path / "table.csv")


@pytest.mark.parametrize(("cases", "count"), [(3, 1), (2, 0), (1, 0), (None, 0), ("3", 0)])
def test_a_report_says_that_a_run_ended_early(tmp_path, cases, count):
    """A run that was resumed with other options may have more cases than it began with."""
    environment = ENVIRONMENT if cases is None else {**ENVIRONMENT, "cases": cases}
    folder = write_run(tmp_path / "run", [record("naive"), record("sdpa")], environment)
    rows = Rows.read(folder)
    said = [f"{folder} has 2 of 3 cases, because the run ended before the others"] * count
    assert unreached(rows.runs) == said
    terminal = subprocess.run(
        [sys.executable, "-m", "longca", "report", str(folder)], capture_output=True, text=True, check=True
    )
    assert terminal.stdout.splitlines()[-1 - count :] == ["2 cases: 2 ok", *said]
    page = page_of(rows)
    assert page.count("because the run ended") == count
    assert [each for each in payload(rows)["leftOut"] if "because the run ended" in each] == said
