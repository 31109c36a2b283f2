import json
import math
from types import SimpleNamespace

import pytest

from longca.errors import RequestError
from longca_advice.record_lines import MOST_WRONG, read_lines
from longca_bench.measuring.case_record import measured_record
from longca_bench.measuring.messages import Result
from longca_bench.measuring.records import Record, parsed, read_records
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


def test_round_trip(tmp_path):
    folder = RunFolder(tmp_path / "run", {"python": "3"})
    written = [record(), record(case="f" * 16, status="wrong", message="dk", samples=(0.1, 0.2))]
    for each in written:
        folder.append(each)
        assert len(list(read_records(tmp_path / "run"))) == written.index(each) + 1, "flushed as it comes"
    folder.close()
    read = list(read_records(tmp_path / "run"))
    assert [each.model_copy(update={"previous": None}) for each in read] == written
    assert [each.previous.partition(":")[0] for each in read] == ["0", "1"]
    assert json.loads((tmp_path / "run" / "environment.json").read_text()) == {"python": "3"}


def test_never_written_into_another_run(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.append(record())
    folder.close()
    with pytest.raises(RequestError, match="--out"):
        RunFolder(tmp_path, {})
    assert len(list(read_records(tmp_path))) == 1


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot write"):
        RunFolder(tmp_path / "file", {})


@pytest.mark.parametrize("line", ["{", "{}", '{"status": 3}'])
def test_edited_lines_are_named(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text(record().model_dump_json() + "\n" + line + "\n")
    with pytest.raises(RequestError, match="line 2"):
        list(read_records(path))


SURROUNDINGS = {
    "suite": {"name": "quick", "version": 1, "digest": "1" * 16},
    "python": "3.12.3",
    "device": {"kind": "cuda", "name": "H200", "capability": [9, 0]},
    "packages": {"torch": "2.10.0", "triton": "3.5.0"},
    "plugins": {"flex": {"distribution": "longca-flex", "version": "0.1.0"}},
    "git_revision": None,
}


def resumed(path, **changed):
    return RunFolder(path, {**SURROUNDINGS, **changed}, resume=True)


def test_a_run_is_resumed_where_nothing_differs(tmp_path):
    folder = RunFolder(tmp_path, SURROUNDINGS)
    folder.append(record())
    folder.append(record(case="f" * 16, status="skipped"))
    folder.close()
    again = resumed(tmp_path)
    again.close()
    assert again.done == {"0" * 16}, "a skipped case is run again"


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
def test_what_differs_is_said_in_plain_words(tmp_path, changed, said):
    folder = RunFolder(tmp_path, SURROUNDINGS)
    folder.append(record())
    folder.close()
    with pytest.raises(RequestError) as refused:
        resumed(tmp_path, **changed)
    assert said in str(refused.value)
    assert "{" not in str(refused.value)


#: Changes of a verified record's line, each with the message that it must get.
IMPOSSIBLE = [
    *((f'"median":0.2|"median":{value}', "median: ") for value in ("0.0", "-0.2", "1e999", '"soon"')),
    ('"median":0.2|"median":' + "9" * 5000, "Invalid JSON: number out of range"),
    *((f"[0.1,0.3,0.2]|[0.1,{value},0.2]", "samples.1: ") for value in ("0.0", "-0.3", "1e999", "null", "{}")),
    ('"median":0.2|"median":NaN', "median: "),
    ('"median":0.2|"median":0.1', "the median is 0.1, and the median of the samples is 0.2"),
    ('"median":0.2|"median":null', "the status is ok, and there is no time"),
    ("[0.1,0.3,0.2]|[]", "the median is 0.2, and the median of the samples is nan"),
    ('"tflops":null|"tflops":3.0', "tflops is 3.0, and 1 operations in 0.2 seconds are"),
    ('"passed":true|"passed":false', "the status is ok, and the finding of out did not pass"),
    ('"passed":true|"passed":1', "a finding has a tensor, passed as true or false, and an error"),
    ('"tensor":"out"|"tensor":3', "a finding has a tensor, passed as true or false, and an error"),
    ('"error":0.001|"err":0.001', "a finding has a tensor, passed as true or false, and an error"),
    ('"status":"ok"|"status":"fine"', "status: "),
    ('"seqlen":64|"seqlen":"long"', "seqlen: "),
    ('"message":""|"message":"\\ud800"', "Invalid JSON"),
    ('"message":""|"message":"\x00"', "Invalid JSON"),
    ('"gpu":null|"gpu":' + '{"a":' * 10_000, "Invalid JSON"),
]


def test_a_file_that_is_no_file_of_records_is_not_read_to_its_end(tmp_path):
    (tmp_path / "records.jsonl").write_text(f"{record().model_dump_json()}\n" + "{}\n" * 300_000)
    found, notes = parsed(read_lines(tmp_path))
    assert (len(found), len(notes)) == (1, MOST_WRONG + 1)
    assert notes[MOST_WRONG].endswith(
        f"line {MOST_WRONG + 2}: it and later lines were not read, after 1000 that are wrong"
    )


@pytest.mark.parametrize(("change", "said"), IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_a_line_that_cannot_be_is_named_and_the_others_are_read(tmp_path, change, said):
    file = tmp_path / "records.jsonl"
    line = record().model_dump_json()
    then, now = change.split("|")
    assert then in line
    file.write_text("\n".join((line.replace(then, now), record(case="f" * 16).model_dump_json(), "")))
    found, (note,) = parsed(read_lines(tmp_path))
    assert [each.case for each in found] == ["f" * 16]
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
