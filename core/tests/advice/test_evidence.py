"""Evidence: what is written is read back, and what cannot be a measurement is refused by its line."""

import json

import pytest

from longca.errors import RequestError
from longca_advice.evidence import Collected, Row, Run, parse, to_line, to_lines

from .rows import RUN, row

H200 = Run(run="another", device="NVIDIA H200", capability=(9, 0))


def shared():
    """A row of several ranks."""
    known = row().model_dump(exclude={"work", "run", "communication"})
    collected = {"send_recv": Collected(calls=3, bytes=2**20, seconds=1e-4)}
    about = {"strategy": "ring_p2p", "placed": "zigzag", "mesh": "ring=2,ulysses=2", "compute": 1e-3}
    return Row(**{**known, **about}, communication=collected, run=RUN)


def fields(**other):
    """The fields of a line, some of them others."""
    return {**json.loads(to_line(row(run=Row.model_fields["run"].default))), **other}


def refused(line, source="some.jsonl"):
    """What is said of a line that is no row."""
    with pytest.raises(RequestError) as error:
        list(parse([line], source, first=7))
    message = str(error.value)
    assert message.startswith(f"{source}, line 7: ")
    assert message.endswith(". Correct or remove the line")
    return message


def test_what_is_written_is_read_back():
    rows = [row(), row(direction="backward", dtype="float32"), row(run=H200, seconds=1.0), shared()]
    lines = list(to_lines(rows))
    assert list(parse(lines, "somewhere")) == rows
    assert len(lines) == 4 + 3, "a line before each run's rows"


def test_a_run_is_that_of_the_rows_after_it():
    alone = to_line(row(run=Row.model_fields["run"].default))
    found = list(parse([alone, to_line(RUN), alone, "", alone, to_line(H200), to_line(row()), "  "], "somewhere"))
    assert [one.run.run for one in found] == ["this machine", "a run", "a run", "a run"]
    assert [one.run.device for one in found] == ["unknown", "Some GPU", "Some GPU", "Some GPU"]
    (after,) = parse([to_line(H200), json.dumps(fields(seconds=1.0))], "somewhere")
    assert after.run == H200


def test_versions_and_the_time_are_in_the_line_of_the_run():
    first, last = "2026-11-22T12:00:00+00:00", "2026-11-22T12:30:00+00:00"
    rows = [row(version="longca-a 1.0", finished=last), row(version="longca-a 1.0", finished=first), row(kernel="b")]
    lines = list(to_lines(rows))
    assert json.loads(lines[0])["versions"] == {rows[0].kernel: "longca-a 1.0"}
    assert not any("longca-a" in line or first in line for line in lines[1:])
    found = list(parse(lines, "somewhere"))
    assert [one.version for one in found] == ["longca-a 1.0", "longca-a 1.0", ""]
    assert [one.finished for one in found] == [last] * 3, "the time of a run is that of its last measurement"
    assert list(to_lines(found)) == lines


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-0.001", "0", '"soon"', "90000"])
def test_times_that_none_can_be_are_refused(seconds):
    line = json.dumps(fields(seconds=12345.0)).replace("12345.0", seconds)
    assert seconds in line
    assert "seconds: " in refused(line)


def test_a_time_that_the_device_cannot_reach_is_refused():
    tera = 4 * 128 * 8 * 4096**2 / 1e12
    for device, most in (("NVIDIA H200", 989), ("NVIDIA A100-SXM4-80GB", 312), ("Some GPU", 5000)):
        run = to_line(Run(run="x", device=device, capability=(9, 0)))
        (kept,) = parse([run, json.dumps(fields(seconds=1.01 * tera / most))], "somewhere")
        assert kept.flops == tera * 1e12
        with pytest.raises(RequestError, match=r"line 2: .* TFLOP/s, more than the device can do"):
            list(parse([run, json.dumps(fields(seconds=0.99 * tera / most))], "somewhere"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"direction": "both"}, "direction: "),
        ({"heads_q": 0}, "heads_q: "),
        ({"work": []}, "row: work has 0 values; it needs 11"),
        ({"work": [1] * 10}, "row: work is a path and then numbers"),
        ({"mesh": "ring=0", "strategy": "s"}, "mesh: "),
        ({"run": {"run": "x"}}, "run.device: "),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_fields_that_no_measurement_has_are_refused(change, said):
    assert said in refused(json.dumps(fields(**change)))
