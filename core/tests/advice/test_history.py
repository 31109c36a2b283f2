"""The history: one line for each measurement. A wrong line costs only itself, and a wrong kernel its measurements."""

import json

import pytest

import longca_advice.history as history_module
import longca_advice.sources as sources_module
from longca import masks
from longca_advice.evidence import Run, to_line
from longca_advice.history import CodeVerdict, append, code_version, history, history_path, remember
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
    assert all(append(one) for one in written)
    assert history().rows == tuple(written)
    assert history().notes == ()
    assert len(path.read_text().splitlines()) == 3


def test_lines_of_earlier_versions_are_read(path):
    path.parent.mkdir()
    chained = {"previous": "0:9c1f", "digest": "00", **json.loads(to_line(row()))}
    path.write_text(f"{json.dumps(chained)}\n\n{to_line(row('b'))}\n")
    assert history().rows == (row(), row("b"))
    assert history().notes == ()


def test_a_later_measurement_of_a_case_replaces_the_earlier_one():
    other = Run(run="this machine", device="Another CPU")
    written = [row(case="1"), row(case="2"), row(case="1", seconds=3.0), row(case="1", run=other), row(), row()]
    for one in written:
        append(one)
    assert history().rows == tuple(written[1:])


@pytest.mark.parametrize(
    "junk",
    [b"{", b"null", b'{"kernel": "a"}', b"\xff\x00", b'{"status": "?"}'],
)
def test_lines_that_are_not_whole_are_left_out_and_named(path, junk):
    append(row())
    path.write_bytes(junk + b"\n" + path.read_bytes() + junk)
    append(row("b"))
    assert history().rows == (row(), row("b")), "a line after a torn one is whole"
    first, last = history().notes
    assert first.startswith(f"{path}, line 1: ")
    assert last.startswith(f"{path}, line 3: ")


def test_a_file_that_cannot_be_read_or_written_is_no_error(path):
    path.mkdir(parents=True)
    assert not append(row())
    assert history().rows == ()
    assert str(path) in history().notes[0]


def record(status="ok", kernel="b", case="c0", direction="forward", **fields):
    """The record of a case on one device, as a run has it."""
    mask = masks.build("causal", 512)
    about = {
        "case": case, "status": status, "kernel": kernel, "form": "row_intervals", "direction": direction,
        "distribution": "longca-b", "distribution_version": "1.0", "pattern": "causal", "seqlen": 512,
        "heads_q": 2, "heads_kv": 1, "head_dim": 64, "dtype": "float32", "density": mask.density,
        "mask_digest": mask.digest, "median": 0.01 if status == "ok" else None, "finished": "2026-11-22T12:00:00+00:00",
    }  # fmt: skip
    remember({**about, **fields}, CPU, mask)


def left():
    return [(one.kernel, one.case) for one in history().rows]


def test_a_measurement_has_its_version_device_and_time():
    record()
    (row,) = history().rows
    assert (row.version, row.finished, row.run) == ("longca-b 1.0", "2026-11-22T12:00:00+00:00", CPU)
    record("unsupported")
    record("timeout", case="c1")
    assert left() == [("b", "c0")]


@pytest.mark.parametrize("status", ["wrong", "suspect"])
def test_a_kernel_that_was_found_wrong_is_left_out_and_named(status):
    record("ok", "a")
    record()
    record(case="c1", direction="backward")
    record(status, case="c2")
    assert left() == [("a", "c0")]
    (said,) = history().notes
    assert f"2 measurements of b, because it was found {status} on Some CPU at 2026-11-22T12:00:00+00:00" in said
    record(case="c3")
    assert left() == [("a", "c0")], "later cases of a wrong kernel are no evidence"


@pytest.mark.parametrize("status", ["suspect", "wrong"])
def test_the_last_verdict_on_a_case_counts(status):
    record()
    record(status, case="c1")
    record(case="c2")
    assert left() == []
    record(case="c1")
    assert left() == [("b", "c0"), ("b", "c2"), ("b", "c1")]
    record(status, case="c1")
    assert left() == []


def test_a_verification_that_passes_ends_one_that_failed():
    record()
    about = {"kernel": "b", "version": "longca-b 1.0", "finished": "", "run": CPU}
    append(CodeVerdict(status="wrong", case="`longca verify`: dq is wrong", **about))
    assert left() == []
    append(CodeVerdict(status="ok", case="`longca verify`", **about))
    assert left() == [("b", "c0")]


def test_edited_sources_are_another_version(monkeypatch, tmp_path):
    digests = {"longca-b": "a1"}
    monkeypatch.setattr(history_module, "sources_digest", lambda name: digests.get(name, ""))
    record(case="c2")  # a time of code that is found wrong stays out after it is mended
    record("wrong")
    monkeypatch.setattr(sources_module, "shipped", lambda: (row("b", version="longca-b 1.0"),))
    assert sources().rows == ()
    digests["longca-b"] = "b2"
    record(case="c1")
    assert [one.version for one in history().rows] == ["longca-b 1.0 with sources b2"]
    assert history().wrong == ()
    assert len(sources().rows) == 2


def test_an_editable_distribution_has_a_digest_of_its_sources():
    assert " with sources " in code_version("longca-core", "0.1.0")
    assert code_version("numpy", "2.5") == "numpy 2.5"
    assert code_version("not-there", "1.0") == "not-there 1.0"


@pytest.mark.parametrize(
    ("status", "tensors", "kept"),
    [
        ("wrong", ["dq", "dv of a timed call"], "a"),
        ("wrong", ["out", "lse of fixed steps"], "b"),
        ("wrong", ["out", "dq"], "ab"),
        ("wrong", ["q of a timed call"], "ab"),
        ("wrong", ["state"], "ab"),
        ("wrong", [], "ab"),
        ("suspect", [], "a"),
    ],
)
def test_the_half_of_a_pair_whose_results_are_wrong_is_left_out(status, tensors, kept):
    for kernel in "ab":
        record(kernel=kernel, distribution=f"longca-{kernel}")
    about = {"distribution": "longca-a + longca-b", "distribution_version": "1.0 + 1.0"}
    findings = [{"tensor": "k", "passed": True}, *({"tensor": tensor, "passed": False} for tensor in tensors)]
    record(status, "a+b", "c1", "backward", findings=findings, **about)
    assert left() == [(kernel, "c0") for kernel in kept]


def test_a_time_of_a_busy_machine_counts_only_where_there_is_no_other(monkeypatch):
    monkeypatch.setattr(sources_module, "shipped", lambda: (row("c", case="s"),))
    for kernel, busy, case in (
        ("a", True, "0"),
        ("b", True, "0"),
        ("b", False, "0"),
        ("b", True, "0"),
        ("b", True, "1"),
    ):
        record(kernel=kernel, case=case, machine={"busy": busy, "why": "3 cores" * busy})
    record(kernel="c", machine={"busy": True, "why": "3 cores"})
    found = sources()
    assert [(one.kernel, one.case, one.busy) for one in found.rows] == [
        ("c", "s", False),
        ("a", "0", True),
        ("b", "0", False),
    ]
    (said,) = found.disturbed("Some CPU")
    assert "busy in all measurements that there are of a on Some CPU" in said
    assert found.disturbed("Another CPU") == []
