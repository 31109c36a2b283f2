"""The page on verifying a function: its function is verified by its commands, and they print what the page shows."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
from typer.testing import CliRunner

from longca_bench.cli.app import app

from .imports import ROOT

PAGE = (ROOT / "docs" / "verify-a-function.md").read_text(encoding="utf-8")
_FILE = re.compile(r"^<!-- file: my_module.py -->\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHOWN = re.compile(r"^```text\n\$ longca ([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _like(line: str) -> str:
    """A line of the answer. Of a worst row the mask is compared. What is nearest to a limit differs by processor."""
    name, _, rest = line.partition(": ")
    if name == "worst row":
        return f"{name}: {rest.partition(':')[0]}"
    return name if name == "nearest to its limit" else line


@pytest.mark.parametrize(("command", "shown"), _SHOWN.findall(PAGE), ids=lambda text: text[:80])
def test_a_command_prints_what_the_page_shows(command, shown, tmp_path, monkeypatch):
    (code,) = _FILE.findall(PAGE)
    (tmp_path / "my_module.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    ran = CliRunner().invoke(app, [*shlex.split(command), "--device", "cpu"])
    assert ran.exit_code == int(shown.startswith("✗")), ran.output
    assert list(map(_like, ran.stdout.splitlines())) == list(map(_like, shown.splitlines()))
    sys.modules.pop("my_module", None)


def test_the_page_has_commands():
    assert len(_SHOWN.findall(PAGE)) == 3
