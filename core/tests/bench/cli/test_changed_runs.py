"""`longca report` and `longca compare` on folders whose files are damaged."""

import json

import pytest

from ..reports.runs import record, write_run

TORN = '{"case": "torn'


@pytest.fixture
def changed(tmp_path):
    """A run of three kernels. The time of the second one contradicts its samples, and the last line is torn."""
    folder = write_run(tmp_path / "run", [record("naive"), record("sdpa"), record("flex")])
    file = folder / "records.jsonl"
    first, second, third, _ = file.read_text().split("\n")
    faster = json.dumps({**json.loads(second), "median": 1e-5})
    file.write_text("\n".join((first, faster, third, TORN)))
    return folder


def test_a_report_names_wrong_lines_and_shows_the_others(fakes, changed):
    ran = fakes.longca("report", str(changed), "--format", "terminal", "--format", "markdown", "--format", "html")
    assert ran.returncode == 1
    altered, torn, about = ran.stderr.splitlines()
    assert f"{changed}/records.jsonl, line 2: " in altered
    assert "the median is 1e-05" in altered
    assert f"{changed}/records.jsonl, line 4: it is torn" in torn
    assert about == "Results leave out the wrong lines, and have all others."
    assert "2 cases: 2 ok" in ran.stdout
    assert "sdpa" not in ran.stdout
    for page in ("report.md", "report.html"):
        assert "line 4: it is torn" in (changed / "report" / page).read_text("utf-8")
    found = fakes.longca("report", str(changed), "--json")
    assert (found.returncode, json.loads(found.stdout)["complaints"]) == (1, ran.stderr.splitlines())


def test_a_comparison_leaves_wrong_lines_out(fakes, changed):
    ran = fakes.longca("compare", str(changed), str(changed), "--json")
    found = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert [pair["kernel"] for pair in found["pairs"]] == ["naive", "flex"]
    assert ran.stderr.splitlines() == found["complaints"]


def test_many_wrong_lines_are_counted_and_a_run_of_wrong_lines_is_refused(fakes, changed):
    file = changed / "records.jsonl"
    intact = file.read_text().splitlines()[0]
    file.write_text(f"{intact}\n" + f"{TORN}\n" * 1000)
    ran = fakes.longca("report", str(changed))
    assert ran.returncode == 1
    assert "990 more lines are wrong" in ran.stderr
    assert len(ran.stderr.splitlines()) == 12
    file.write_text(TORN)
    assert "line 1: it is torn" in fakes.refuses("report", str(changed))
