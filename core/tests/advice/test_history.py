"""The history: one line a measurement, which nothing that is wrong with the file can take down."""

import fcntl
import json
import math
import os
import random
import re
import resource
import subprocess
import sys
import threading

import pytest
import torch

import longca
import longca_advice.sources as sources_module
from longca import masks
from longca.manifests.devices import cpu_device
from longca_advice.devices import cpu_reaches, evidence_name
from longca_advice.evidence import Run, to_line
from longca_advice.history import append, history, history_path, remember
from longca_advice.record_lines import append_linked, parse_linked
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


def test_a_linked_line_is_taken_apart(path):
    append_linked(path, b'{"a":1}', 2**20)
    linked = path.read_bytes().rstrip(b"\n")
    line, link, is_right = parse_linked(linked)
    assert (line, link.startswith("0:"), is_right) == (b'{"a":1}', True, True)
    assert parse_linked(linked.replace(b"1}", b"2}"))[2] is False
    assert parse_linked(b'{"a":1}') == (b'{"a":1}', None, None)


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
    first, last, *moved = history().wrong
    assert all("missing" in said for said in moved)
    assert first.startswith(f"{path}, line 1: ")
    assert last.startswith(f"{path}, line 3: ")
    assert "Remove the file to begin anew" in first


def change(lines, at=1):
    lines[at] = lines[at].replace(b'"seconds":', b'"seconds":1')


def change_the_last(lines):
    change(lines, -1)


def change_the_last_and_remove_its_digest(lines):
    change(lines, -1)
    lines[-1] = re.sub(rb'"digest":"\w+",', b"", lines[-1])


def forge_a_link(lines):
    lines[3] = lines[3].replace(lines[3][13:20], b"9:00000")


def drop(lines):
    del lines[1]


def double(lines):
    lines.insert(2, lines[1])


def insert(lines):
    lines.insert(2, to_line(row("forged", 1e-3)).encode())


def insert_with_a_link(lines):
    lines.insert(2, lines[2][:49] + to_line(row("forged", 1e-3)).encode()[1:])


def add(lines):
    lines.append(to_line(row("forged", 1e-3)).encode())


@pytest.mark.parametrize(
    ("tamper", "left", "says"),
    [
        (change, "acd", r"line 2: it was changed after it was written"),
        (change_the_last, "abc", r"line 4: it was changed after it was written"),
        (change_the_last_and_remove_its_digest, "abc", r"line 4: it has no digest of itself"),
        (forge_a_link, "abc", r"line 4: it was changed after it was written"),
        (drop, "acd", r"line 2 is missing; a written line was dropped"),
        (double, "abcd", "line 3: it doubles line 2"),
        (insert, "abcd", "line 3: it has no link"),
        (insert_with_a_link, "abcd", "line 3: it was inserted, or it is a changed copy"),
        (add, "abcd", "line 5: it has no link"),
    ],
)
def test_lines_are_a_chain(path, tamper, left, says):
    for number, name in enumerate("abcd"):
        append(row(name, 1.0 + number))
    assert history().wrong == ()
    lines = path.read_bytes().split(b"\n")[:-1]
    tamper(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert "".join(one.kernel for one in history().rows) == left
    (said,) = history().wrong
    assert re.search(says, said)
    assert said.endswith("Remove the file to begin anew")


def test_a_doubt_counts_whatever_the_chain_says(path):
    record("wrong")
    record("ok", "a")
    path.write_text(path.read_text().replace("12:00:00", "12:00:01", 1))
    record()
    assert left() == [("a", "c0")]
    changed, left_out = history().wrong
    assert "line 1: it was changed after it was written" in changed
    assert "found wrong on Some CPU at 2026-11-22T12:00:01" in left_out


def test_a_doubt_after_many_wrong_lines_counts(path):
    record()
    path.write_bytes(path.read_bytes() + b"x\n" * 5000)
    record("wrong")
    assert left() == []
    assert any("4000 more lines are wrong" in said for said in history().wrong)


def test_lines_that_processes_add_at_once_are_one_chain(path):
    code = "import sys; from longca_advice.history import append; from longca_advice.evidence import Row\n"
    code += "for number in range(20): append(Row.model_validate_json(sys.argv[1]))"
    writers = [subprocess.Popen([sys.executable, "-c", code, row(name).model_dump_json()]) for name in "abc"]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert history().wrong == ()
    assert len(path.read_bytes().splitlines()) == 60


def test_measurements_without_a_link_are_none(path):
    """A file that somebody wrote by hand does not say which kernel is fast."""
    path.parent.mkdir(parents=True)
    path.write_text(to_line(row("a")) + "\n" + to_line(row("b")) + "\n")
    append(row("c"))
    assert [one.kernel for one in history().rows] == ["c"]
    assert [re.search(r"line \d: it has no link", said)[0][5] for said in history().wrong] == ["1", "2"]


def test_a_lock_that_is_never_given_back_makes_nobody_wait(path, monkeypatch):
    monkeypatch.setattr("longca.regular_files._PATIENCE", 0.1)
    append(row("a"))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        in_time(lambda: append(row("b")))
    append(row("c"))
    assert [one.kernel for one in history().rows] == ["a", "c"]


def test_empty_lines_are_nothing(path):
    path.parent.mkdir()
    path.write_bytes(b"\n\n")
    append(row())
    path.write_bytes(path.read_bytes() + b"\n\n")
    append(row("b"))
    assert history().rows == (row(), row("b"))
    assert history().wrong == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *(({"seconds": value}, "seconds") for value in (math.nan, math.inf, 0.0, -1.0, 1e9)),
        ({"seconds": 1e-12}, "more than the device can do"),
        ({"more": 1}, "more"),
        ({"work": []}, "work has 0 values"),
        ({"finished": "2999-01-01T00:00:00+00:00"}, "has not come yet"),
        ({"finished": "2026-13-01T00:00:00+00:00"}, "month"),
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
    assert "of_this_test" in first.costs.kernels_on(CPU.device)
    append(row("b_of_this_test"))
    path.write_text(path.read_text() + "{\n")
    assert first.notes == ()
    changed = sources()
    assert changed.costs is not first.costs
    assert "b_of_this_test" in changed.costs.kernels_on(CPU.device)
    assert [text.startswith("left out of this machine's evidence: ") for text in changed.notes] == [True]


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
    (said,) = history().wrong
    assert f"2 measurements of b, because it was found {status} on Some CPU at 2026-11-22T12:00:00+00:00" in said
    record(case="c3")
    assert left() == [("a", "c0")], "later cases of a wrong kernel are no evidence"


@pytest.mark.parametrize("status", ["wrong", "suspect"])
def test_the_evidence_that_comes_with_longca_is_left_out_too(status, monkeypatch):
    others = row("b", version="longca-b 1.1"), row("a", version="longca-b 1.0")
    monkeypatch.setattr(sources_module, "shipped", lambda: (row("b", version="longca-b 1.0"), *others))
    record(status)
    assert sources().rows == others
    (said,) = sources().notes
    assert "1 measurements of b of longca-b 1.0 elsewhere, because this machine found it wrong or suspect" in said


def test_another_version_or_device_is_not_doubted():
    record("wrong")
    record(case="c1", distribution_version="1.1")
    remember_elsewhere = Run(run="this machine", device="Another CPU")
    append(row("b", run=remember_elsewhere, version="longca-b 1.0"))
    assert [one.version for one in history().rows] == ["longca-b 1.1", "longca-b 1.0"]
    assert history().wrong == ()


def test_a_row_without_a_version_is_doubted_with_any():
    append(row("b"))
    record("wrong")
    assert history().rows == ()


@pytest.mark.parametrize(("status", "after"), [("suspect", [("b", "c0"), ("b", "c1")]), ("wrong", [])])
def test_a_case_that_was_measured_again_ends_a_suspicion_but_not_an_error(status, after):
    record()
    record(status, case="c1")
    record(case="c1")
    assert left() == after


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
def test_the_half_of_a_pair_whose_results_are_wrong_is_doubted(status, tensors, kept):
    for kernel in "ab":
        record(kernel=kernel, distribution=f"longca-{kernel}")
    about = {"distribution": "longca-a + longca-b", "distribution_version": "1.0 + 1.0"}
    findings = [{"tensor": "k", "passed": True}, *({"tensor": tensor, "passed": False} for tensor in tensors)]
    record(status, "a+b", "c1", "backward", findings=findings, **about)
    assert left() == [(kernel, "c0") for kernel in kept]


def test_a_doubt_that_is_edited_is_named(path):
    record("wrong")
    path.write_text(path.read_text().replace('"wrong"', '"fine"'))
    record()
    assert left() == [("b", "c0")]
    assert "line 1: status: " in history().wrong[0]


def test_times_that_this_cpu_cannot_reach_are_left_out():
    here = Run(run="this machine", device=evidence_name(cpu_device()))
    seconds = 1e-12 * row(run=here).flops / cpu_reaches("bfloat16")
    append(row("slower", seconds * 1.01, run=here))
    append(row("faster", seconds * 0.99, run=here))
    assert [one.kernel for one in history().rows] == ["slower"]
    assert "line 2: " in history().wrong[0]


def in_time(call):
    """The result of a call that must not hang."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the call hangs"
    return results[0]


def fifo(path):
    os.mkfifo(path)


def fifo_behind_a_link(path):
    os.mkfifo(path.with_name("fifo"))
    path.symlink_to("fifo")


def link_to_itself(path):
    path.symlink_to(path.name)


def folder(path):
    path.mkdir()


def endless(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**40)


def long_line(path):
    path.write_bytes(b"1" * 20_000_000)


def noise(path):
    path.write_bytes(random.Random(0).randbytes(100_000))


def many(path):
    path.write_bytes(b"{}\n" * 10_000_000)


def nested(path):
    path.write_bytes(b'{"kernel":' * 100_000 + b"\n" + b"9" * 5000 + b"\n" + '{"kernel": "\u2028"}'.encode())


@pytest.mark.parametrize(
    "make", [fifo, fifo_behind_a_link, link_to_itself, folder, endless, huge, long_line, noise, nested, many]
)
def test_no_file_breaks_attention_or_makes_it_wait(path, make):
    path.parent.mkdir()
    make(path)
    q, k, v = torch.randn(3, 32, 2, 16).unbind()
    mask = masks.build("causal", 32)
    expected = longca.attention(q, k, v, mask, kernel="naive")
    torch.testing.assert_close(in_time(lambda: longca.attention(q, k, v, mask, kernel="auto")), expected)
    assert history().rows == ()
    in_time(lambda: append(row()))


def test_a_linked_file_is_followed(path):
    path.parent.mkdir()
    path.symlink_to("elsewhere.jsonl")
    append(row())
    assert history().rows == (row(),)


def test_a_line_that_is_cut_by_a_full_disk_costs_only_itself(path):
    append(row())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
    append(row("b"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append(row("c"))
    assert [one.kernel for one in history().rows] == ["a", "c"]
    assert "line 2: " in history().wrong[0]
