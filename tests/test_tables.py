"""The tables that pages contain are those of today's records and views."""

from __future__ import annotations

import os

import pytest

from .docs_pages import docs_module
from .imports import ROOT

TABLES = docs_module("tables")
RUN = "results/cpu/quick"


def page(words: str, body: str = "old\n") -> str:
    return f"before\n<!-- view: {words} -->\n{body}<!-- end -->\nafter\n"


@pytest.mark.parametrize("path", TABLES.PAGES, ids=lambda path: path.name)
def test_the_blocks_of_a_page_are_todays(path, monkeypatch):
    monkeypatch.setenv("LONGCA_HISTORY", os.devnull)
    assert TABLES.stale(path.read_text(encoding="utf-8")) == [], "write them again: python docs/tables.py"


def test_a_block_is_written_in_place_and_then_is_not_stale():
    text = page(f"throughput {RUN} direction=forward level=3")
    written = TABLES.rewritten(text)
    assert TABLES.stale(text) == [f"throughput {RUN} direction=forward level=3"]
    assert TABLES.stale(written) == []
    assert written.startswith("before\n<!-- view: ")
    assert written.endswith("\n<!-- end -->\nafter\n")
    assert "### forward" in written
    assert "backward" not in written


def test_words_are_conditions_or_fields_of_the_view():
    (block,) = TABLES.blocks(
        page(f"throughput {RUN} seqlen=256,1024 kernel=naive values=ms:max title='ms of {{seqlen}}'")
    )
    assert "ms of" in block.made()
    assert "sdpa" not in block.made()
    (other,) = TABLES.blocks(page(f"throughput {RUN} kernel!=naive,nothing"))
    assert "naive" not in other.made()
    assert "sdpa" in other.made()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"throughput {RUN} nothing=1", "a word that its view does not take"),
        (f"throughput {RUN} kernel=nothing", "has no rows"),
        (f"thruput {RUN}", "thruput"),
        ("throughput results/nowhere", "nowhere"),
    ],
)
def test_a_wrong_block_says_what_is_wrong(words, message):
    with pytest.raises(Exception, match=message):
        TABLES.rewritten(page(words))


def test_the_command_writes_what_is_stale_and_checks(tmp_path, monkeypatch, capsys):
    file = tmp_path / "a.md"
    file.write_text(page(f"environment {RUN}"), encoding="utf-8")
    monkeypatch.setattr(TABLES, "PAGES", (file,))
    monkeypatch.setattr(TABLES, "ROOT", tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    assert [TABLES.main(["--check"]), TABLES.main([]), TABLES.main(["--check"])] == [1, 0, 0]
    assert capsys.readouterr().out == f"a.md: environment {RUN}\n" * 2
