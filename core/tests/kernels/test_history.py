"""The history: one line a measurement, which nothing that is wrong with the file can take down."""

import json

import pytest

from longca import masks
from longca.kernels.history import Entry, append, entries, history_path
from longca.manifests import Device, Problem

MASK = masks.build("causal_document", 100, documents=[40, 60])


def problem(mask=MASK, device=None, **more):
    more = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "dtype": "bfloat16", **more}
    return Problem(mask=mask, device=device or Device("cpu", name="Some CPU"), **more)


def test_an_entry_says_what_was_measured_on_what():
    entry = Entry.of("naive", problem(direction="backward"), 0.25)
    assert entry == Entry(
        kernel="naive",
        device="cpu",
        direction="backward",
        seconds=0.25,
        pattern="causal_document",
        seqlen=100,
        density=(40 * 41 // 2 + 60 * 61 // 2) / 100**2,
        heads_q=8,
        heads_kv=2,
        head_dim=64,
        dtype="bfloat16",
    )


def test_a_gpu_is_known_by_its_name_and_a_cut_by_no_pattern():
    gpu = Device("cuda", (9, 0), 2**37, "NVIDIA H200")
    entry = Entry.of("naive", problem(MASK.cut([(3, 50)], [(0, 100)]), gpu), 1.0)
    assert (entry.device, entry.pattern, entry.seqlen) == ("NVIDIA H200", None, 47)


def test_what_is_appended_is_read_back_in_order(history):
    assert history_path() == history
    assert list(entries()) == []
    written = [Entry.of(name, problem(), seconds) for name, seconds in (("a", 1.0), ("b", 2.5e-6), ("a", 3.0))]
    for entry in written:
        append(entry)
    assert list(entries()) == written
    assert len(history.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\n\n",
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
def test_lines_that_are_not_whole_are_passed_over(history, junk):
    good = Entry.of("a", problem(), 1.0)
    append(good)
    history.write_bytes(junk + b"\n" + history.read_bytes() + junk)
    assert list(entries()) == [good]


def test_entries_of_a_later_version_are_passed_over(history):
    good = Entry.of("a", problem(), 1.0)
    append(good)
    line = json.loads(history.read_text())
    history.write_text(json.dumps({**line, "more": 1}) + "\n" + history.read_text())
    assert list(entries()) == [good]


def test_a_measurement_after_a_torn_line_is_not_lost_with_it(history):
    history.parent.mkdir(parents=True)
    history.write_text('{"kernel": "a", "dev')
    good = Entry.of("b", problem(), 1.0)
    append(good)
    assert list(entries()) == [good]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LONGCA_HISTORY", str(tmp_path / "file" / "records.jsonl"))
    append(Entry.of("a", problem(), 1.0))
    assert list(entries()) == []


def test_without_the_variable_it_is_in_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LONGCA_HISTORY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path / name)
    assert history_path() == tmp_path / "longca" / "records.jsonl"
