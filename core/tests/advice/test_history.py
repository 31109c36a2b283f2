"""The history: one line a measurement, which nothing that is wrong with the file can take down."""

import json
import math

import pytest

from longca_advice.evidence import Run, to_line
from longca_advice.history import append, history, history_path
from longca_advice.sources import sources

from . import rows

CPU = Run(run="this machine", device="Some CPU")


def row(kernel="a", seconds=1.0, **changes):
    """A measurement of a forward."""
    return rows.row(kernel, "causal", 1024, **{"seconds": seconds, "case": "", "run": CPU, **changes})


def test_what_is_appended_is_read_back_in_order(path):
    assert history_path() == path
    assert history().rows == ()
    h200 = Run(run="this machine", device="NVIDIA H200", capability=(9, 0), memory=2**37, packages={"torch": "2.11"})
    written = [row(), row("b", 2.5e-6), row("a", 3.0, run=h200, direction="backward", case="0123")]
    for one in written:
        append(one)
    assert history().rows == tuple(written)
    assert history().wrong == ()
    assert len(path.read_text().splitlines()) == 3


def test_the_file_is_read_again_only_when_it_has_changed():
    append(row())
    first = history()
    assert history() is first
    append(row("b"))
    assert [one.kernel for one in history().rows] == ["a", "b"]
    assert [one.kernel for one in first.rows] == ["a"]


def test_a_later_measurement_of_a_case_replaces_the_earlier_one():
    other = Run(run="this machine", device="Another CPU")
    written = [row(case="1"), row(case="2"), row(case="1", seconds=3.0), row(case="1", run=other), row(), row()]
    for one in written:
        append(one)
    assert history().rows == tuple(written[1:])


@pytest.mark.parametrize(
    "junk",
    [
        b"{",
        b'{"kernel": "a", "device": "c',
        b"[1, 2]",
        b"7",
        b"null",
        b'{"kernel": "a"}',
        b'{"kernel": "a", "from": "a later version"}',
        b"\xff\xfe\x00 not text",
        b"\x00" * 64,
    ],
)
def test_lines_that_are_not_whole_are_left_out_and_named(path, junk):
    append(row())
    path.write_bytes(junk + b"\n" + path.read_bytes() + junk)
    assert history().rows == (row(),)
    first, last = history().wrong
    assert first.startswith(f"{path}, line 1: ")
    assert last.startswith(f"{path}, line 3: ")
    assert "Correct or remove the line" in first


@pytest.mark.parametrize("junk", [b"", b"\n\n"])
def test_empty_lines_are_nothing(path, junk):
    append(row())
    path.write_bytes(junk + path.read_bytes() + junk)
    assert history().rows == (row(),)
    assert history().wrong == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *(({"seconds": value}, "seconds") for value in (math.nan, math.inf, 0.0, -1.0, 1e9)),
        ({"seconds": 1e-12}, "more than the device can do"),
        ({"more": 1}, "more"),
        ({"work": []}, "work has 0 values"),
    ],
)
def test_what_cannot_be_is_left_out_and_named(path, change, says):
    append(row())
    append(row("b"))
    first, second = path.read_text().splitlines()
    path.write_text(f"{json.dumps({**json.loads(first), **change})}\n{second}\n")
    assert history().rows == (row("b"),)
    (wrong,) = history().wrong
    assert says in wrong


def test_a_measurement_after_a_torn_line_is_not_lost_with_it(path):
    path.parent.mkdir(parents=True)
    path.write_text('{"kernel": "a", "dev')
    append(row("b"))
    assert history().rows == (row("b"),)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGCA_HISTORY", str(tmp_path / "file" / "evidence.jsonl"))
    append(row())
    assert history().rows == ()


def test_without_the_variable_it_is_in_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LONGCA_HISTORY")
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path / name)
    assert history_path() == tmp_path / "longca" / "evidence.jsonl"


def test_the_model_is_kept_until_the_history_changes(path):
    append(row("of_this_test"))
    first = sources()
    assert sources().costs is first.costs
    assert "of_this_test" in first.costs.kernels
    path.write_text(path.read_text() + to_line(row("b_of_this_test")) + "\n{\n")
    assert first.notes == ()
    changed = sources()
    assert changed.costs is not first.costs
    assert "b_of_this_test" in changed.costs.kernels
    assert [text.startswith("left out of this machine's evidence: ") for text in changed.notes] == [True]
