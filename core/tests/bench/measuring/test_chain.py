"""The chain of a run's lines: every change shows, and the intact part is read."""

import json

import pytest

from longca.errors import RequestError
from longca_bench.measuring.records import read_records
from longca_bench.measuring.run_folder import RunFolder

from .test_records import SURROUNDINGS
from .test_run_folder import found, write


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def file(run):
    return write(run)


def lines(file):
    return file.read_bytes().split(b"\n")[:-1]


def rewrite(file, changed):
    file.write_bytes(b"".join(line + b"\n" for line in changed))


def without_link(line):
    return json.dumps({**json.loads(line), "previous": None}).encode()


def other_samples(line):
    return line.replace(b"[0.1,", b"[0.15,")


#: What is done to five lines, the cases whose records are intact, and what must be said.
CHANGES = {
    "changed": (lambda x: [*x[:2], other_samples(x[2]), *x[3:]], [0, 1, 3, 4], ["line 3: it was changed"]),
    "changed first": (lambda x: [other_samples(x[0]), *x[1:]], [1, 2, 3, 4], ["line 1: it was changed"]),
    "changed last": (lambda x: [*x[:4], other_samples(x[4])], [0, 1, 2, 3], ["line 5: it was changed"]),
    "dropped": (lambda x: [*x[:2], *x[3:]], [0, 1, 3, 4], ["line 3 is missing"]),
    "dropped first": (lambda x: x[1:], [1, 2, 3, 4], ["line 1 is missing"]),
    "dropped last": (lambda x: x[:4], [0, 1, 2, 3], ["line 5 is missing"]),
    "three dropped": (lambda x: [x[0], x[4]], [0, 4], ["lines 2 to 4 are missing"]),
    "all dropped": (lambda _: [], [], ["lines 1 to 5 are missing"]),
    "doubled": (lambda x: [*x[:3], *x[2:]], [0, 1, 2, 3, 4], ["line 4: it doubles line 3"]),
    "doubled at the end": (lambda x: [*x, x[1]], [0, 1, 2, 3, 4], ["line 6: it doubles line 2"]),
    "inserted copy": (lambda x: [*x[:3], other_samples(x[2]), *x[3:]], [0, 1, 2, 3, 4], ["line 4: it was inserted"]),
    "inserted before": (lambda x: [*x[:2], other_samples(x[2]), *x[2:]], [0, 1, 2, 3, 4], ["line 3: it was inserted"]),
    "inserted at the end": (
        lambda x: [*x, x[4].replace(b'"4:', b'"5:')],
        [0, 1, 2, 3, 4],
        ["line 6: it was inserted: it follows no line"],
    ),
    "inserted without a link": (
        lambda x: [*x[:2], without_link(x[0]), *x[2:]],
        [0, 1, 2, 3, 4],
        ["line 3: it was inserted: it has no link"],
    ),
    "moved": (
        lambda x: [x[0], x[2], x[1], *x[3:]],
        [0, 2, 1, 3, 4],
        ["line 3: it was moved: it was written as line 2"],
    ),
    "no record": (lambda x: [*x[:2], b"{", *x[3:]], [0, 1, 3, 4], ["line 3: record: Invalid JSON"]),
    "too long": (
        lambda x: [*x[:2], b"1" * 20_000_000, *x[3:]],
        [0, 1, 3, 4],
        ["line 3: it has 20000000 bytes, and a record has at most 8388608"],
    ),
    "nothing": (lambda x: x, [0, 1, 2, 3, 4], []),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_line_is_named_and_the_intact_part_is_read(run, file, change):
    make, intact, said = CHANGES[change]
    rewrite(file, make(lines(file)))
    records, notes = found(run)
    assert records == intact
    assert len(notes) == len(said)
    assert all(text in note for text, note in zip(said, notes, strict=True)), notes
    if said:
        with pytest.raises(RequestError, match=r"line|lines"):
            list(read_records(run))
        before = file.read_bytes()
        with pytest.raises(RequestError, match="cannot resume"):
            RunFolder(run, SURROUNDINGS, resume=True)
        assert file.read_bytes() == before


def test_records_of_earlier_versions_have_no_chain_and_are_continued_with_one(run, file):
    (run / "seal.json").unlink()
    rewrite(file, [without_link(line) for line in lines(file)])
    assert found(run) == ([0, 1, 2, 3, 4], [])
    write(run, 2, resume=True)
    assert found(run) == ([0, 1, 2, 3, 4, 5, 6], [])
    rewrite(file, [*lines(file)[:4], other_samples(lines(file)[4]), *lines(file)[5:]])
    assert found(run)[0] == [0, 1, 2, 3, 5, 6]


def test_a_changed_environment_and_a_changed_seal_are_named(run, file):
    environment, seal = run / "environment.json", run / "seal.json"
    text = environment.read_text()
    environment.write_text(text.replace("H200", "B200"))
    assert found(run)[1] == ["/environment.json was changed after the run began"]
    environment.write_text(text)
    seal.write_text("{}")
    assert "seal.json has no link to a last line" in found(run)[1][0]
