"""`longca make-lengths`, as it is called: what a file was taken for is said, once, and not among the JSON."""

import json

import pytest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lengths.txt").write_text("12\n" * 1203 + "400\n", "utf-8")
    (tmp_path / "line.txt").write_text("1000, 96, 3000", "utf-8")
    (tmp_path / "ids.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"input_ids": [1]}\n', "utf-8")
    (tmp_path / "text.txt").write_text("a text of six\n words\n", "utf-8")
    (tmp_path / "corpus.jsonl").write_text('{"text": "a b"}\n{"text": "a b c"}\n{"text": ""}\n', "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["lengths.txt"], "{}/lengths.txt: 1,204 lengths, numbers in text"),
        (["line.txt"], "{}/line.txt: 3 lengths, numbers in text"),
        (["ids.jsonl"], "{}/ids.jsonl: 2 lengths, JSON Lines"),
        (["corpus.jsonl"], "{}/corpus.jsonl: JSON Lines, 2 documents counted in words, 1 empty skipped"),
        (["corpus.jsonl", "text.txt"], "2 files: text and JSON Lines, 3 documents counted in words, 1 empty skipped"),
    ],
)
def test_what_a_file_was_taken_for_is_said(fakes, folder, names, said):
    out = folder / "histogram.csv"
    ask = ("make-lengths", *(str(folder / name) for name in names), "--out", str(out))
    ran = fakes.longca(*ask)
    assert (ran.returncode, ran.stderr) == (0, said.format(folder) + "\n")
    assert ran.stdout.endswith(f" written to {out}\n")
    counted = {"lengths.txt": 1204, "line.txt": 3, "ids.jsonl": 2, "text.txt": 1, "corpus.jsonl": 1 + len(names)}
    again = fakes.longca(*ask, "--json")
    assert (again.returncode, again.stderr) == (0, ran.stderr)
    assert json.loads(again.stdout)["documents"] == counted[names[0]]


def test_a_list_that_is_no_list_of_lengths_is_refused(fakes, folder):
    (folder / "lengths.txt").write_text("12\n-4\n", "utf-8")
    said = fakes.refuses("make-lengths", str(folder / "lengths.txt"), "--out", str(folder / "histogram.csv"))
    assert said.startswith(f"error: {folder}/lengths.txt, line 2: -4 is not a document length; write whole")
    assert not (folder / "histogram.csv").exists()
