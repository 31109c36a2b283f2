"""Runs whose records or folders are odd."""

import json
import os

import pytest

from longca.errors import RequestError
from longca_bench.reports.formats import FORMATS, write_reports
from longca_bench.reports.markdown import page_of
from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import open_run
from longca_bench.reports.views import tables

from .runs import ENVIRONMENT, record, write_run


@pytest.mark.parametrize("change", [{"seqlen": 10**400}, {"sent_bytes": {"p2p": [10**400]}}, {"mesh": "x"}])
def test_a_record_that_no_table_holds_is_named_and_left_out(tmp_path, change):
    folder = write_run(tmp_path / "run", [record("sdpa")])
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps({**record().model_dump(mode="json"), **change}) + "\n")
    rows = Rows.read(folder)
    assert list(rows["kernel"]) == ["sdpa"]
    (note,) = rows.runs[0].notes
    assert f"records.jsonl, line 2: {next(iter(change))}" in note
    assert open_run(folder).notes == [note]


def test_pairs_and_operations_may_exceed_64_bits(tmp_path):
    large = record(status="unsupported", area=2**64, flops=2**70)
    rows = Rows.read(write_run(tmp_path / "run", [large]))
    assert (list(rows["area"]), list(rows["flops"])) == ([2.0**64], [2.0**70])


def test_of_a_case_measured_twice_the_last_record_counts(tmp_path):
    folder = write_run(tmp_path / "run", [record(time=1.0), record("sdpa"), record(time=2.0)])
    rows = Rows.read(folder)
    assert list(rows["kernel"]) == ["naive", "sdpa"]
    assert list(rows["median"]) == [2.0, 1e-3]
    assert [each.median for each in rows.where(kernel="naive").records()] == [2.0]
    assert list(rows.flat()["median"]) == [2.0, 1e-3]


def test_a_run_is_read_by_its_folder_or_its_records_and_a_folder_of_runs_as_all_of_them(tmp_path):
    folder = write_run(tmp_path / "run.json", [record("sdpa")])
    assert open_run(folder) == open_run(folder / "records.jsonl")
    assert open_run(folder).environment == ENVIRONMENT
    assert len(Rows.read(folder, folder / "records.jsonl")) == 2
    write_run(tmp_path / "other", [record()])
    assert list(Rows.read(tmp_path)["run"]) == ["other", "run.json"]


@pytest.mark.parametrize("make", ["missing", "bare", "empty", "environment"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, make):
    if make != "missing":
        (tmp_path / make).mkdir()
    if make in ("empty", "environment"):
        (tmp_path / make / "records.jsonl").write_text(record().model_dump_json() + "\n" if make != "empty" else "")
        (tmp_path / make / "environment.json").write_text("[]" if make == "environment" else "{}")
    for read in (open_run, Rows.read):
        with pytest.raises(RequestError):
            read(tmp_path / make)


def test_a_folder_may_have_a_name_that_is_not_utf_8(tmp_path):
    folder = write_run(tmp_path / os.fsdecode(b"run \xff"), [record("sdpa")])
    rows = Rows.read(folder, write_run(tmp_path / "other", [record()], {**ENVIRONMENT, "python": "3"}))
    assert list(rows["run"]) == ["run \\udcff", "other"]
    for name in FORMATS:
        assert all(file.stat().st_size for file in write_reports(rows, folder / "report", [name]))
    for view in ("results", "environment"):
        for table in tables(view, rows):
            table.frame().to_csv(tmp_path / "table.csv")


@pytest.mark.parametrize(("cases", "count"), [(3, 1), (2, 0), (None, 0), ("3", 0)])
def test_a_report_says_that_a_run_ended_early(tmp_path, cases, count):
    environment = ENVIRONMENT if cases is None else {**ENVIRONMENT, "cases": cases}
    folder = write_run(tmp_path / "run", [record("naive"), record("sdpa")], environment)
    rows = Rows.read(folder)
    said = [f"{folder} has 2 of 3 cases, because the run ended before the others"] * count
    assert rows.unreached() == said
    assert page_of(rows).count("because the run ended") == count
    (page,) = write_reports(rows, tmp_path, ["html"])
    assert page.read_text(encoding="utf-8").count("because the run ended") == count
