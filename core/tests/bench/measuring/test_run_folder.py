"""A run's folder: one writer, regular files, and nothing lost when the folder or the disk changes."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from longca.errors import RecordError, RequestError
from longca_advice.record_lines import MOST_OF_LINE, read_lines
from longca_bench.measuring.records import parsed, read_records
from longca_bench.measuring.run_folder import RunFolder

from .test_records import SURROUNDINGS, record

COUNT = 5


def write(path, count=COUNT, **options):
    """A run that has ended, with some records."""
    folder = RunFolder(path, SURROUNDINGS, **options)
    start = len(folder.earlier)
    for number in range(start, start + count):
        folder.append(record(case=f"{number:016x}"))
    folder.close()
    return path / "records.jsonl"


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def file(run):
    return write(run)


def found(path):
    """The cases that are intact, and what is said about the other lines."""
    records, notes = parsed(read_lines(path))
    return [int(each.case, 16) for each in records], [note.replace(str(path), "") for note in notes]


def test_a_run_that_was_killed_is_continued_after_its_last_whole_line(run, file):
    (run / "seal.json").unlink()  # a process that is killed writes no seal
    with file.open("ab") as torn:
        torn.write(b'{"case": "torn')
    folder = RunFolder(run, SURROUNDINGS, resume=True)
    assert folder.torn
    folder.append(record(case="f" * 16))
    folder.close()
    assert found(run) == ([0, 1, 2, 3, 4, 2**64 - 1], [])


def test_nothing_is_written_before_everything_is_checked(run, file):
    with file.open("ab") as torn:
        torn.write(b'{"case": "torn')
    rewritten = file.read_bytes().replace(b'"status":"ok"', b'"status":"fine"', 1)
    file.write_bytes(rewritten)
    with pytest.raises(RequestError, match="line 1: status"):
        RunFolder(run, SURROUNDINGS, resume=True)
    assert file.read_bytes() == rewritten
    with pytest.raises(RequestError, match="python was"):
        RunFolder(run, {**SURROUNDINGS, "python": "4"}, resume=True)
    assert file.read_bytes() == rewritten


def test_a_torn_last_line_is_named_where_it_is_reported(run, file):
    (run / "seal.json").unlink()
    file.write_bytes(file.read_bytes()[:-30])
    records, (note,) = found(run)
    assert records == [0, 1, 2, 3]
    assert "line 5: it is torn" in note


@pytest.mark.parametrize("break_", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c", "\r"])
def test_only_newlines_end_lines(run, break_):
    folder = RunFolder(run, SURROUNDINGS)
    folder.append(record(status="error", message=f"one{break_}two"))
    folder.close()
    assert [each.message for each in read_records(run)] == [f"one{break_}two"]
    RunFolder(run, SURROUNDINGS, resume=True).close()


HOLD = """
import json, sys, time
from pathlib import Path
from longca_bench.measuring.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]), json.loads(sys.argv[2]), resume=True)
folder.append(folder.earlier[0])
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_refused_until_the_first_has_died(run, file):
    command = [sys.executable, "-c", HOLD, str(run), json.dumps(SURROUNDINGS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            before = file.read_bytes()
            for resume in (True, False):
                with pytest.raises(RequestError, match="another run writes to"):
                    RunFolder(run, SURROUNDINGS, resume=resume)
            assert file.read_bytes() == before
        finally:
            other.kill()
    again = RunFolder(run, SURROUNDINGS, resume=True)
    assert len(again.earlier) == COUNT + 1
    again.close()


def test_a_folder_in_which_nothing_was_recorded_is_taken(run):
    RunFolder(run, {**SURROUNDINGS, "python": "2"}).close()
    write(run)
    assert found(run) == ([0, 1, 2, 3, 4], [])


def in_time(call):
    """The result of a call, or its error; a call that hangs fails the test."""
    results = []

    def run():
        try:
            results.append(call())
        except (RequestError, RecordError) as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the call hangs"
    return results[0]


@pytest.mark.parametrize("name", ["records.jsonl", "environment.json", "seal.json"])
@pytest.mark.parametrize("kind", ["FIFO", "symbolic link", "folder"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(run, file, tmp_path, name, kind):
    (run / name).rename(tmp_path / name)
    make = {
        "FIFO": os.mkfifo,
        "symbolic link": lambda path: path.symlink_to(tmp_path / name),
        "folder": lambda path: path.mkdir(),
    }
    make[kind](run / name)
    for call in (
        lambda: RunFolder(run, SURROUNDINGS, resume=True),
        lambda: list(read_records(run)),
    ):
        said = str(in_time(call))
        assert f"it is a {kind}, and a regular file is needed" in said
        assert str(run) in said


@pytest.mark.parametrize("name", ["records.jsonl", "environment.json"])
def test_a_new_run_does_not_write_through_a_link_or_into_a_fifo(run, tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("")
    run.mkdir()
    (run / name).symlink_to(target)
    assert "symbolic link" in str(in_time(lambda: RunFolder(run, SURROUNDINGS)))
    (run / name).unlink()
    os.mkfifo(run / name)
    assert "FIFO" in str(in_time(lambda: RunFolder(run, SURROUNDINGS)))
    assert target.read_text() == ""


def test_a_linked_folder_and_a_named_link_are_followed(run, file, tmp_path):
    (tmp_path / "latest").symlink_to(run)
    assert len(list(read_records(tmp_path / "latest"))) == COUNT
    (tmp_path / "link.jsonl").symlink_to(file)
    assert len(list(read_records(tmp_path / "link.jsonl"))) == COUNT
    write(tmp_path / "latest", 1, resume=True)
    assert len(list(read_records(run))) == COUNT + 1


def test_a_file_beyond_the_memory_is_refused_at_once(run, file):
    with file.open("ab") as sparse:
        sparse.truncate(2**40)
    assert "1099511627776 bytes" in str(in_time(lambda: list(read_records(run))))


def append_elsewhere(file):
    with file.open("ab") as other:
        other.write(b"{}\n")


def truncate(file):
    os.truncate(file, 100)


def change_the_last_line(file):
    with file.open("r+b") as other:
        other.seek(-5, os.SEEK_END)
        other.write(b"x")


def change_an_earlier_line(file):
    line = file.read_bytes().split(b"\n")[1]
    with file.open("r+b") as other:
        other.seek(file.read_bytes().index(line) + line.index(b"0.3"))
        other.write(b"0.1")


def replace(file):
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)


def remove(file):
    file.unlink()


#: What another process does to the file, and what the run says of it.
CHANGES = {
    append_elsewhere: "got 3 bytes after line 5:",
    truncate: "was cut in line 1:",
    change_the_last_line: "was changed in line 5:",
    change_an_earlier_line: "was changed in line 2:",
    replace: "was removed or replaced",
    remove: "was removed or replaced",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_under_a_run_is_found_at_the_next_record(run, change):
    folder = RunFolder(run, SURROUNDINGS)
    for number in range(COUNT):
        folder.append(record(case=f"{number:016x}"))
    change(folder.records)
    left = folder.records.read_bytes() if folder.records.exists() else b""
    with pytest.raises(RecordError, match=rf"records\.jsonl {CHANGES[change]}"):
        folder.append(record(case="f" * 16))
    folder.close()
    assert not left or folder.records.read_bytes() == left, "nothing of another writer is touched"
    if change in (replace, remove):
        (run / "records.rescued.jsonl").replace(folder.records)
        assert found(run) == ([0, 1, 2, 3, 4, 2**64 - 1], [])
        RunFolder(run, SURROUNDINGS, resume=True).close()
    else:
        assert found(run)[1]


@pytest.mark.parametrize("change", [append_elsewhere, truncate, change_the_last_line, change_an_earlier_line])
def test_a_file_that_changes_after_the_last_record_is_found_at_the_end(run, change):
    folder = RunFolder(run, SURROUNDINGS)
    for number in range(COUNT):
        folder.append(record(case=f"{number:016x}"))
    change(folder.records)
    folder.close()
    assert f"{folder.records} {CHANGES[change]} another process wrote to it" in folder.fault


def test_a_large_file_is_read_again_where_its_times_or_size_differ_and_at_the_end(run, monkeypatch):
    monkeypatch.setattr("longca_bench.measuring.run_folder._READ_AGAIN", 0)
    read, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *about: read.append(about) or pread(*about))
    folder = RunFolder(run, SURROUNDINGS)
    for number in range(COUNT):
        folder.append(record(case=f"{number:016x}"))
    assert len(read) <= 1, "the first record has none before it"
    time.sleep(0.05)  # longer than a tick of the system's clock
    change_an_earlier_line(folder.records)
    with pytest.raises(RecordError, match="was changed in line 2"):
        folder.append(record(case="f" * 16))
    folder.close()
    assert "was changed in line 2" in folder.fault


def test_a_changed_line_is_found_though_the_time_of_the_change_is_set_back(run, file):
    folder = RunFolder(run, SURROUNDINGS, resume=True)
    before = file.stat()
    change_an_earlier_line(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(RecordError, match="was changed in line 2"):
        folder.append(record(case="f" * 16))
    folder.close()


def test_records_of_a_folder_that_vanishes_are_kept_in_another(run, tmp_path, monkeypatch):
    (tmp_path / "a spare").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a spare"))
    folder = RunFolder(run, SURROUNDINGS)
    folder.append(record(case=f"{0:016x}"))
    shutil.rmtree(run)
    with pytest.raises(RecordError, match=r"removed or replaced.*--resume --out '") as raised:
        folder.append(record(case=f"{1:016x}"))
    folder.close()
    assert not run.exists()
    (kept,) = (tmp_path / "a spare").iterdir()
    assert str(raised.value).endswith(f"'{kept}'")
    assert found(kept) == ([0, 1], [])
    write(kept, 1, resume=True)
    assert found(kept) == ([0, 1, 2], [])


def test_records_that_can_be_written_nowhere_are_a_sentence(run, monkeypatch):
    folder = RunFolder(run, SURROUNDINGS)
    folder.append(record())
    shutil.rmtree(run)
    monkeypatch.setattr("tempfile.tempdir", str(run / "nowhere"))
    with pytest.raises(RecordError, match=r"cannot be written elsewhere either: No such file"):
        folder.append(record())
    folder.close()


@pytest.fixture
def small_files():
    """A limit on the size of files, so that a write ends in the middle as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_ends_in_the_middle_leaves_the_records_before_it(run, small_files):
    folder = RunFolder(run, SURROUNDINGS)
    for number in range(COUNT):
        folder.append(record(case=f"{number:016x}"))
    small_files(folder.records.stat().st_size + 100)
    with pytest.raises(RecordError, match="make room and continue with --resume"):
        folder.append(record(case="f" * 16))
    folder.close()
    assert found(run) == ([0, 1, 2, 3, 4], [])
    small_files(2**30)
    write(run, 1, resume=True)
    assert found(run) == ([0, 1, 2, 3, 4, 5], [])


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device. .*; make room and continue with --resume"),
        (errno.EDQUOT, "quota exceeded. .*; make room and continue with --resume"),
        (errno.EROFS, "Read-only file system. .*; make it writable, or name a copy of the folder with --out, and"),
        (errno.EIO, "Input/output error. .*; make it writable, or name a copy"),
    ],
)
def test_what_a_full_disk_needs_is_not_what_a_broken_one_needs(run, monkeypatch, number, remedy):
    def fails(file, data):
        os.write(file, data[:20])
        raise OSError(number, os.strerror(number))

    folder = RunFolder(run, SURROUNDINGS)
    folder.append(record(case=f"{0:016x}"))
    monkeypatch.setattr("longca_bench.measuring.run_folder.write_all", fails)
    with pytest.raises(RecordError, match=remedy):
        folder.append(record(case=f"{1:016x}"))
    monkeypatch.undo()
    folder.close()
    assert found(run) == ([0], [])


def test_a_ctrl_c_after_a_line_was_written_leaves_it_counted_and_sealed(run, monkeypatch):
    def interrupted(file, data):
        os.write(file, data)
        raise KeyboardInterrupt

    folder = RunFolder(run, SURROUNDINGS)
    folder.append(record(case=f"{0:016x}"))
    monkeypatch.setattr("longca_bench.measuring.run_folder.write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.append(record(case=f"{1:016x}"))
    folder.close()
    assert folder.added == 2
    assert found(run) == ([0, 1], [])
    monkeypatch.undo()
    write(run, 1, resume=True)
    assert found(run) == ([0, 1, 2], [])


def test_a_seal_that_cannot_be_written_leaves_the_earlier_one(run, file, small_files):
    folder = RunFolder(run, SURROUNDINGS, resume=True)
    folder.append(record(case="f" * 16))
    small_files(1)
    folder.close()
    assert folder.fault.startswith(f"cannot write {run}/seal.json: File too large. All records are in {file}")
    assert found(run) == ([0, 1, 2, 3, 4, 2**64 - 1], [])
    small_files(2**30)
    again = RunFolder(run, SURROUNDINGS, resume=True)
    again.close()
    assert (again.fault, json.loads((run / "seal.json").read_text())["last"][:2]) == ("", "6:")
    assert sorted(path.name for path in run.iterdir()) == ["environment.json", "records.jsonl", "seal.json"]


def test_a_file_system_that_takes_no_files_is_a_sentence():
    with pytest.raises(RequestError, match=r"cannot write to /proc/longca: .*Choose another folder with --out"):
        RunFolder(Path("/proc/longca"), SURROUNDINGS)


def test_a_record_that_is_too_long_is_not_written(run):
    folder = RunFolder(run, SURROUNDINGS)
    with pytest.raises(RecordError, match="cannot be written"):
        folder.append(record(status="error", message="x" * MOST_OF_LINE))
    folder.append(record())
    folder.close()
    assert found(run) == ([0], [])
