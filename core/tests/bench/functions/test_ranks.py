"""Functions under their own context parallelism, on ranks that torchrun starts."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longca.errors import RequestError, UnknownNameError
from longca.masks import build
from longca_bench.functions.ranks import tokens_of_ranks

FOLDER = Path(__file__).parent
#: The functions of one launch, each with the options of `check` and the answer. None for a right function.
TOGETHER = {
    "shares": ({}, None),
    "shares_zigzag": ({"placement": "zigzag"}, None),
    "shares_striped": ({"placement": "striped"}, None),
    "takes_rank_of_world": ({}, "A group of half of the ranks is wrong.* on ranks 2, 3"),
    "sums_gradients_twice": ({}, "No known mistake explains it"),
    "takes_first_rows": ({}, "No known mistake explains it"),
}
SCRIPT = """
import json, sys
import torch.distributed as dist
import wrong_functions
from longca.errors import VerificationError
from longca.masks import build
from longca.testing import check

dist.init_process_group("gloo")
said = {}
for name, options in json.loads(sys.argv[1]).items():
    placement = options.pop("placement", "contiguous")
    placement = getattr(wrong_functions, placement, placement)
    documents = {} if name == "takes_rank_of_world" else {"documents": (50, 1, 45)}
    mask = build("causal_document" if documents else "causal", 96, **documents)
    try:
        found = check(getattr(wrong_functions, name), mask, placement=placement, head_dim=16, **options)
        said[name] = [[each.label for each in found.masks], ""]
    except VerificationError as error:
        said[name] = [[], str(error)]
if dist.get_rank() == 1:
    print(json.dumps(said))
dist.destroy_process_group()
"""


def on_ranks(*arguments, ranks=2):
    """Runs Python on ranks, and returns its exit code, its output and its errors."""
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d")
    ran = subprocess.run(
        [sys.executable, *launcher, "--rdzv-endpoint", "localhost:0", *arguments],
        cwd=FOLDER,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.xdist_group("functions")
def test_every_rank_gets_the_same_answer_and_each_half_is_a_group(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = {name: about for name, (about, _) in TOGETHER.items()}
    code, answer, said = on_ranks(str(script), json.dumps(options), ranks=4)
    assert code == 0, said
    for name, (labels, error) in json.loads(answer).items():
        if TOGETHER[name][1] is None:
            assert error == ""
            assert labels[-1].endswith("on ranks 2, 3")
        else:
            assert re.search(TOGETHER[name][1], error), name


@pytest.mark.xdist_group("functions")
def test_the_command_names_a_rank_that_raises():
    about = ("verify", "--function", "wrong_functions:raises_on_last", "--device", "cpu", "--head-dim", "16")
    code, answer, said = on_ranks("-m", "longca", *about, "--mask", "causal", "--seqlen", "96", "--timeout", "60")
    assert (code, answer) == (1, "")
    assert "error: rank 1: wrong_functions:raises_on_last raised ValueError: an odd rank" in said


def test_zigzag_gives_a_rank_an_early_part_and_a_late_one():
    assert tokens_of_ranks("zigzag", build("causal", 8), 2)[0].tolist() == [0, 1, 6, 7]


@pytest.mark.parametrize(
    ("placement", "kind", "said"),
    [
        ("zigzg", UnknownNameError, "Did you mean zigzag"),
        (lambda mask, ranks: [[0, 1], [1, 2]], RequestError, "returned 4 tokens on 2 ranks; return the positions"),
        (lambda mask, ranks: 1 // 0, RequestError, "<lambda> raised ZeroDivisionError: integer division"),
        (lambda mask, ranks: None, RequestError, "<lambda> raised TypeError"),
    ],
)
def test_placements_that_do_not_fit_are_refused(placement, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        tokens_of_ranks(placement, build("causal", 4), 2)
