"""Records and the folder of a run: one writer, lines that are checked, and nothing lost or doubled."""

import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from longca.errors import RecordError, RequestError
from longca_bench.measuring.case_record import measured_record
from longca_bench.measuring.messages import Result
from longca_bench.measuring.records import Record, load_environment, read_records, records_of
from longca_bench.measuring.run_folder import RunFolder
from longca_bench.measuring.status import Status


def record(**fields):
    about = {
        "case": "0" * 16, "suite": "quick", "suite_version": 1, "suite_digest": "1" * 16, "status": "ok",
        "kernel": "naive", "distribution": "longca-core", "distribution_version": "0.1.0", "device": "cpu",
        "pattern": "full", "seqlen": 64, "lengths": "auto", "seed": 0, "heads_q": 4, "heads_kv": 2, "head_dim": 32,
        "dtype": "float32", "direction": "forward", "mask_digest": "2" * 16, "area": 4096, "density": 1.0,
        "tile_efficiency": 0.25, "flops": 1, "finished": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    findings = ({"tensor": "out", "passed": True, "error": 1e-3},)
    measured = {"samples": (0.1, 0.3, 0.2), "median": 0.2, "findings": findings}
    return Record(**{**about, **(measured if fields.get("status", "ok") == "ok" else {}), **fields})


SURROUNDINGS = {
    "suite": {"name": "quick", "version": 1, "digest": "1" * 16},
    "python": "3.12.3",
    "device": {"kind": "cuda", "name": "H200", "capability": [9, 0]},
    "packages": {"torch": "2.10.0", "triton": "3.5.0"},
    "plugins": {"flex": {"distribution": "longca-flex", "version": "0.1.0"}},
    "git_revision": None,
}


def numbered(number):
    return record(case=f"{number:016x}")


def write(path, count=3, **options):
    """A run that has ended, with some records."""
    folder = RunFolder(path, SURROUNDINGS, **options)
    start = len(folder.earlier)
    for number in range(start, start + count):
        folder.append(numbered(number))
    folder.close()
    return path / "records.jsonl"


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def file(run):
    return write(run)


def found(path):
    """The cases that are read, and what is said about the other lines."""
    notes = []
    return [int(each.case, 16) for each in records_of(path, notes)], [note.replace(str(path), "") for note in notes]


def test_round_trip(run):
    folder = RunFolder(run, SURROUNDINGS)
    written = [record(), record(case="f" * 16, status="wrong", message="d\u2028k", samples=(0.1, 0.2))]
    for count, each in enumerate(written, 1):
        folder.append(each)
        assert list(read_records(run)) == written[:count], "flushed as it comes"
    folder.close()
    assert load_environment(run) == SURROUNDINGS


def test_the_last_record_of_a_case_counts(run, file):
    folder = RunFolder(run, SURROUNDINGS, resume=True)
    folder.append(numbered(1).model_copy(update={"message": "again"}))
    folder.close()
    assert [each.message for each in read_records(run)] == ["", "again", ""]


def test_a_run_is_never_written_into_another(run, file):
    with pytest.raises(RequestError, match="--out"):
        RunFolder(run, SURROUNDINGS)
    assert found(run) == ([0, 1, 2], [])


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", Path("/proc/longca")):
        with pytest.raises(RequestError, match=r"cannot write to .*Choose another folder with --out"):
            RunFolder(path, SURROUNDINGS)


def test_a_skipped_case_is_run_again(run):
    folder = RunFolder(run, SURROUNDINGS)
    folder.append(record())
    folder.append(record(case="f" * 16, status="skipped"))
    folder.close()
    again = RunFolder(run, SURROUNDINGS, resume=True)
    again.close()
    assert again.done == {"0" * 16}


@pytest.mark.parametrize("torn", [b'{"case": "torn', None], ids=["half a line", "no newline"])
def test_a_run_that_was_killed_goes_on_after_its_last_whole_line(run, file, torn):
    content = file.read_bytes()
    file.write_bytes(content[:-1] if torn is None else content + torn)
    whole = [0, 1] if torn is None else [0, 1, 2]
    folder = RunFolder(run, SURROUNDINGS, resume=True)
    assert folder.torn
    assert [int(case, 16) for case in sorted(folder.done)] == whole
    folder.append(record(case="f" * 16))
    folder.close()
    assert found(run) == ([*whole, 2**64 - 1], [])


def test_a_torn_last_line_is_named_where_it_is_read(run, file):
    file.write_bytes(file.read_bytes()[:-30])
    records, (note,) = found(run)
    assert (records, note.partition(": record")[0]) == ([0, 1], "/records.jsonl, line 3: it is torn, without an end")


def test_nothing_is_written_before_everything_is_checked(run, file):
    rewritten = file.read_bytes().replace(b'"status":"ok"', b'"status":"fine"', 1) + b'{"case": "torn'
    file.write_bytes(rewritten)
    for changed, said in (({}, "line 1: status"), ({"python": "4"}, "python was")):
        with pytest.raises(RequestError, match=said):
            RunFolder(run, {**SURROUNDINGS, **changed}, resume=True)
    assert file.read_bytes() == rewritten
    (run / "environment.json").unlink()
    with pytest.raises(RequestError, match=r"environment\.json is missing"):
        RunFolder(run, SURROUNDINGS, resume=True)


def test_a_run_of_an_earlier_version_with_links_and_a_seal_goes_on(run, file):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    linked = [json.dumps({**line, "previous": f"{n}:{'a' * 32}"}) for n, line in enumerate(lines)]
    file.write_text("\n".join(linked) + "\n")
    (run / "seal.json").write_text('{"last": "3:bb"}')
    write(run, 2, resume=True)
    assert found(run) == ([0, 1, 2, 3, 4], [])


def test_a_stream_of_masks_of_an_earlier_version_is_read(run, file):
    line = json.loads(file.read_text().splitlines()[0])
    file.write_text(json.dumps({**line, "direction": "step", "stream": {"layers": 8, "fixed": [0.1]}}) + "\n")
    assert found(run) == ([0], [])


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
    write(run, 1, resume=True)
    assert found(run) == ([0, 1, 2, 0, 4], [])


@pytest.fixture
def small_files():
    """A limit on the size of files, so that a write ends in the middle as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_ends_in_the_middle_leaves_the_records_before_it(run, small_files):
    folder = RunFolder(run, SURROUNDINGS)
    for number in range(3):
        folder.append(numbered(number))
    small_files(folder.records.stat().st_size + 100)
    with pytest.raises(RecordError, match="make room and continue with --resume"):
        folder.append(record(case="f" * 16))
    folder.close()
    assert found(run) == ([0, 1, 2], [])
    small_files(2**30)
    write(run, 1, resume=True)
    assert found(run) == ([0, 1, 2, 3], [])


def test_a_broken_disk_needs_something_else_than_a_full_one(run, monkeypatch):
    def fails(_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    folder = RunFolder(run, SURROUNDINGS)
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(RecordError, match=r"Read-only file system\. .*; make it writable, or name a copy"):
        folder.append(numbered(0))
    monkeypatch.undo()
    folder.close()
    assert found(run) == ([], [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"python": "3.13.0"}, "python was 3.12.3 and is 3.13.0"),
        ({"packages": {"torch": "2.11.0", "triton": None}}, "packages torch was 2.10.0 and is 2.11.0; packages triton"),
        ({"device": {"kind": "cpu", "name": "Xeon", "capability": None}}, "capability was 9.0 and is missing"),
        ({"plugins": {}}, "plugins flex was longca-flex 0.1.0 and is missing"),
        ({"git_revision": "abc"}, "git revision was missing and is abc"),
        ({"packages": {str(number): "1" for number in range(9)}}, "and 6 more differences. Start another run with"),
    ],
)
def test_what_differs_is_said_in_plain_words(run, file, changed, said):
    with pytest.raises(RequestError) as refused:
        RunFolder(run, {**SURROUNDINGS, **changed}, resume=True)
    assert said in str(refused.value)
    assert "{" not in str(refused.value)


#: Changes of a verified record's line, each with the message that it must get.
IMPOSSIBLE = [
    ('"median":0.2|"median":NaN', "median: "),
    ('"median":0.2|"median":0.1', "the median is 0.1, and the median of the samples is 0.2"),
    ('"median":0.2|"median":null', "the status is ok, and there is no time"),
    ("[0.1,0.3,0.2]|[0.1,-0.3,0.2]", "samples.1: "),
    ('"tflops":null|"tflops":3.0', "tflops is 3.0, and 1 operations in 0.2 seconds are"),
    ('"passed":true|"passed":false', "the status is ok, and the finding of out did not pass"),
    ('"tensor":"out"|"tensor":"lse"', "the status is ok, and there is no finding of out"),
    ('"error":0.001|"err":0.001', "findings.0.error: Field required"),
    ('"gpu":null|"gpu":{"sm_clock":"x"}', "gpu.sm_clock"),
    ('"strategy":null|"strategy":"usp"', "a strategy is given without placement"),
    ('"seqlen":64|"seqlen":"long"', "seqlen: "),
    ('"gpu":null|"gpu":' + '{"a":' * 10_000, "Invalid JSON"),
]


@pytest.mark.parametrize(("change", "said"), IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_a_line_that_cannot_be_is_named_and_the_others_are_read(tmp_path, change, said):
    file = tmp_path / "records.jsonl"
    line = record().model_dump_json()
    then, now = change.split("|")
    assert then in line
    file.write_text("\n".join((line.replace(then, now), record(case="f" * 16).model_dump_json(), "")))
    notes = []
    assert [each.case for each in records_of(tmp_path, notes)] == ["f" * 16]
    (note,) = notes
    assert note.startswith(f"{file}, line 1: ")
    assert said in note
    with pytest.raises(RequestError, match="line 1: "):
        list(read_records(tmp_path))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"samples": (0.1, 0.0), "median": 0.05}, "samples.1: "),
        ({"samples": (0.1, math.nan), "median": math.nan}, "samples.1: "),
        ({"samples": (), "median": None}, "there is no time"),
        ({"backend": "\ud800"}, "surrogates"),
        ({"gpu": {"clock": object()}}, "object"),
    ],
)
def test_a_result_that_no_record_can_hold_is_an_error(fields, said):
    about = record().model_dump()
    task = SimpleNamespace(placed=None, unverified=False, form="dense", case=SimpleNamespace(kernel="naive"))
    measured = {name: about.pop(name) for name in ("samples", "median", "findings", "backend", "form", "gpu")}
    for name in ("status", "message", "advice", "finished"):
        del about[name]
    found = measured_record(about, task, Result(Status.OK, "", {**measured, **fields}))
    assert (found.status, found.median, found.samples) == (Status.ERROR, None, ())
    assert found.message.startswith("the result cannot be recorded: ")
    assert said in found.message
