"""`longca show-mask`, as it is called."""

import json


def test_what_is_written_is_said(fakes, tmp_path):
    file = tmp_path / "a [red] mask.svg"
    ask = ("show-mask", "causal", "--seqlen", "64", "--out", str(file))
    assert fakes.says(*ask) == f"wrote {file}\n"
    assert file.exists()
    assert fakes.says(*ask, "--json").startswith("{")


def test_a_file_of_documents_is_drawn_whole_and_one_of_lengths_is_drawn_from(fakes, tmp_path):
    file = tmp_path / "own.txt"
    file.write_text("40\n1\n24\n", "utf-8")
    said = fakes.says("show-mask", "causal_document", "--documents", str(file), "--json")
    assert json.loads(said)["factors"] == {"documents": [40, 1, 24]}
    ran = fakes.longca("show-mask", "causal_document", "--lengths", str(file), "--json")
    assert (ran.returncode, json.loads(ran.stdout)["seqlen_q"]) == (0, 4096)
    assert ran.stderr.startswith(
        f"{file}: 3 lengths, numbers in text; documents are drawn from it at random. --documents "
    )
