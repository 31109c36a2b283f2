"""The help of every command at 80 columns: words for values, no types, and no broken lines."""

import pytest
import typer.main

from longca_bench.cli.app import app

COMMANDS = sorted(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_a_help_has_words_for_values_and_examples(fakes, command):
    text = fakes.longca(*command.split(), "--help", COLUMNS="80").stdout
    assert max(map(len, text.splitlines())) <= 80
    for kind in ("[x>", "<=x", "bool", "<int", "<str>", "<float", "<path>", "<list", "Path]"):
        assert kind not in text
    if command in ("recommend", "list-capabilities", "verify", "show-mask", "make-lengths"):
        assert f"Example: longca {command} " in text


@pytest.mark.parametrize("command", ["recommend", "show-mask"])
def test_a_mask_that_is_given_as_for_a_run_is_told_where_it_belongs(fakes, command):
    said = fakes.longca(command, "--mask", "causal", COLUMNS="120")
    assert said.returncode == 2
    assert f"the mask comes first: longca {command} causal" in said.stderr
