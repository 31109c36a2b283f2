"""The help of every command, and where a mask belongs."""

import pytest
from typer.testing import CliRunner

from longca_bench.cli.app import COMMANDS, app


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_a_help_fits_the_terminal_and_shows_no_value_for_flags(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, [*command.split(), "--help"]).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "--help" in text
    assert "bool" not in text


@pytest.mark.parametrize("command", ["recommend", "show-mask"])
def test_a_mask_that_is_given_as_for_a_run_is_told_where_it_belongs(command):
    said = CliRunner().invoke(app, [command, "--mask", "causal"])
    assert said.exit_code == 2
    assert f"the mask comes first: longca {command} causal" in " ".join(said.stderr.replace("│", "").split())
