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


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("longca show-l", ["show-layout"]),
        ("longca recommend causal_b", ["causal_blockwise"]),
        ("longca run quick --kernel nai", ["naive"]),
        ("longca verify --device h100-p", ["h100-pcie"]),
    ],
)
def test_a_shell_completes_commands_masks_kernels_and_devices(words, found):
    env = {"_LONGCA_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert CliRunner().invoke(app, [], prog_name="longca", env=env).stdout.split() == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("show-layout {} --ranks=2", "show-layout {} --gpus 2"),
        (
            "recommend causal --seqlen 4k --device cpu --forward",
            "recommend causal --seqlen 4k --device cpu --direction forward",
        ),
        ("list-capabilities --device cpu --mha", "list-capabilities --device cpu --heads 8:8"),
    ],
)
def test_old_names_of_options_mean_the_new_ones(old, new):
    answers = [CliRunner().invoke(app, text.format("nowhere").split()) for text in (old, new)]
    assert (answers[0].output, str(answers[0].exception)) == (answers[1].output, str(answers[1].exception))
    assert "No such option" not in answers[0].output
