"""The page as a file, and its data."""

import builtins
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longca.errors import MissingPackageError, RequestError
from longca_bench.cli.app import app
from longca_bench.reports.html import limits, page
from longca_bench.reports.html.page import write_html
from longca_bench.reports.html.payload import payload
from longca_bench.reports.html.rerun import rerun
from longca_bench.reports.rows import Rows
from longca_bench.reports.runs import Run

from ..runs import ENVIRONMENT, record


def test_the_file_loads_nothing_and_allows_its_own_scripts_alone(tmp_path):
    text = write_html(Rows.of([record()], ENVIRONMENT), tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    outside = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!#)", outside)
    assert re.search(r"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-[^ ]+' 'sha256-[^ ]+'\"", text)
    assert text.count("</script>") == 3
    assert len(text) < 1_500_000


def test_a_text_that_looks_like_a_placeholder_stays(tmp_path):
    text = write_html(Rows.of([record(message="<!--SCRIPT-->")]), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "\\u003c!--SCRIPT--\\u003e" in text
    assert text.rstrip().endswith("</html>")


def test_without_the_chart_library_it_says_how_to_install_it(tmp_path, monkeypatch):
    found = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "vl_convert":
            raise ImportError(name)
        return found(name, *args, **kwargs)

    page._chart_library.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackageError, match=re.escape("pip install 'longca-core[html]'")):
        write_html(Rows.of([record()]), tmp_path / "report.html")


def test_rows_without_records_are_refused(tmp_path):
    with pytest.raises(RequestError, match="no record is left"):
        write_html(Rows.of([record()]).where(kernel="another"), tmp_path / "report.html")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RequestError, match="cannot write to"):
        write_html(Rows.of([record()]), tmp_path / "file" / "report.html")


def test_columns_have_an_entry_for_each_record():
    rows = Rows.of(
        [record(), record("sdpa", median=float("nan")), record("sdpa", 2048, "oom", message="why")], ENVIRONMENT
    )
    data = payload(rows)
    columns = {**data["columns"], **data["textColumns"]}
    assert {len(column) for column in columns.values()} == {3}
    assert columns["median"] == [1e-3, None, None]
    assert [data["texts"][number] for number in columns["status"]] == ["ok", "ok", "oom"]
    assert columns["problem"] == [0, 0, 1]
    assert len(columns["samples"][0]) == 11


def test_conditions_narrow_the_data():
    rows = Rows.of([record(), record("sdpa")]).where(kernel="sdpa")
    data = payload(rows)
    assert [data["texts"][number] for number in data["textColumns"]["kernel"]] == ["sdpa"]


def test_runs_have_names_that_tell_them_apart():
    runs = [Run(Path(path), (record(),), None) for path in ("a/x", "b/x")]
    assert [run["name"] for run in payload(Rows.of_runs(runs))["runs"]] == ["a/x", "b/x"]


def test_what_does_not_fit_is_left_out_problem_by_problem():
    problems = ["a", "a", "b", "c", "a", "b"]
    assert limits.kept(problems, 6) == [0, 1, 2, 3, 4, 5]
    assert limits.kept(problems, 5) == [0, 1, 2, 4, 5]
    assert limits.kept(problems, 4) == [0, 1, 4]


def test_the_page_says_what_it_leaves_out():
    assert limits.sentences(limits.MOST_WITH_SAMPLES, limits.MOST_WITH_SAMPLES) == []
    more = limits.sentences(10_001, 10_001)
    assert "samples of single calls are left out" in more[0]
    most = " ".join(limits.sentences(limits.MOST_RECORDS + 5, limits.MOST_RECORDS))
    assert "5 records are left out" in most
    assert "measured last are left out first" in most


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, ""),
        ({"pattern": "causal_sliding_window", "factors": {"window": 100}}, "--window 100"),
        ({"pattern": "causal_document", "factors": {"documents": (1000, 24)}}, "--documents 1000,24"),
        ({"pattern": "causal_document", "lengths": "mix"}, "--lengths mix"),
        ({"lengths": "mix"}, ""),
        ({"pattern": "uniform_block_sparse", "factors": {"heads": 2, "kept": 0.5}}, "--kept 0.5 --mask-heads 2"),
        (
            {"strategy": "ring_p2p", "placement": "auto", "world_size": 2, "mesh": "ring=2"},
            "--strategy ring_p2p --placement auto --nproc 2",
        ),
    ],
)
def test_a_command_measures_the_case_again(fields, options):
    shape = "--kernel naive --seqlen 1024 --heads 4:2 --head-dim 32 --dtype float32 --direction forward --seed 0"
    some = record(**fields)
    parts = ["longca run", some.pattern, shape, *([options] if options else []), "--device cpu"]
    assert rerun(some, "cpu") == " ".join(parts)


def test_a_command_is_one_that_run_takes():
    some = record(pattern="causal_sliding_window", factors={"window": 100}, direction="backward")
    said = CliRunner().invoke(app, [*shlex.split(rerun(some, "cpu"))[1:], "--dry-run", "--json"])
    (planned,) = json.loads(said.stdout)
    expected = {
        "kernel": "naive", "pattern": some.pattern, "factors": {"window": 100}, "seqlen": 1024, "heads": "4:2",
        "direction": "backward",
    }  # fmt: skip
    assert planned.items() >= expected.items()


def test_a_command_quotes_what_a_shell_would_read():
    some = record("a; rm -rf $HOME", pattern="$(x)")
    assert shlex.split(rerun(some, None))[:5] == ["longca", "run", "$(x)", "--kernel", "a; rm -rf $HOME"]
