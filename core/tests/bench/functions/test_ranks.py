"""Functions under their own context parallelism: `torchrun … longca verify --function` on two ranks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from longca.errors import RequestError, UnknownNameError
from longca.manifests import Device, Problem
from longca.masks import build
from longca_bench.functions.mistakes import Mistake
from longca_bench.functions.ranks import tokens_of_ranks

FOLDER = Path(__file__).parent
MASK = ("--mask", "causal_document", "--documents", "50,1,45")


#: The functions of one launch, each with the options of `check` and the mistake. None for a right function.
TOGETHER = {
    "averages_gradients": ({}, Mistake.AVERAGED),
    "keeps_to_itself": ({}, Mistake.OWN_KEYS),
    "takes_first_rows": ({}, Mistake.LOCAL_MASK),
    "shares_turned": ({"rotary": 10000.0}, None),
    "shares_zigzag": ({"placement": "zigzag"}, None),
    "shares_striped": ({"placement": "striped"}, None),
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
    mask = build("causal_document", 96, documents=(50, 1, 45))
    try:
        check(getattr(wrong_functions, name), mask, placement=placement, head_dim=16, **options)
        said[name] = ""
    except VerificationError as error:
        said[name] = str(error)
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
        timeout=120,
    )
    return ran.returncode, ran.stdout, ran.stderr


def verified(name, *options, mask=MASK, ranks=2):
    """Verifies a function by the command line on ranks."""
    asked = ("--function", f"wrong_functions:{name}", "--device", "cpu", "--head-dim", "16", "--timeout", "60")
    return on_ranks("-m", "longca", "verify", *asked, *mask, *options, ranks=ranks)


@pytest.mark.parametrize(
    ("name", "mistakes"),
    [
        pytest.param("shares", [], marks=pytest.mark.exhaustive),
        ("takes_rank_of_world", [Mistake.GROUP]),
    ],
)
@pytest.mark.xdist_group("functions")
def test_each_half_of_four_ranks_is_a_group(name, mistakes):
    code, answer, said = verified(name, "--json", mask=("--mask", "causal"), ranks=4)
    assert code == bool(mistakes), said
    found = json.loads(answer)
    assert found["groups"] == ["ranks 0, 1, 2, 3", "ranks 0, 1", "ranks 2, 3"]
    assert [each["mistake"] for each in found["mistakes"]] == mistakes
    wrong = [each["mask"] for each in found["masks"] if not each["passed"]]
    assert wrong == ["causal on ranks 2, 3"] * bool(mistakes)


@pytest.mark.parametrize(
    ("name", "options", "mistake"),
    [
        pytest.param("turns_from_zero", ("--rotary", "10000"), Mistake.POSITIONS, marks=pytest.mark.exhaustive),
        ("keeps_own_gradients", (), Mistake.NOT_REDUCED),
    ],
)
@pytest.mark.xdist_group("functions")
def test_a_mistake_of_ranks_is_named(name, options, mistake):
    code, answer, said = verified(name, *options, "--json")
    assert code == 1, said
    assert [each["mistake"] for each in json.loads(answer)["mistakes"]] == [mistake], said


@pytest.mark.exhaustive
@pytest.mark.xdist_group("functions")
def test_every_rank_gets_the_same_answer(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    asked = {name: options for name, (options, _) in TOGETHER.items()}
    code, answer, said = on_ranks(str(script), json.dumps(asked))
    assert code == 0, said
    found = json.loads(answer)
    for name, (_, mistake) in TOGETHER.items():
        assert [each for each in Mistake if each.says in found[name]] == ([] if mistake is None else [mistake])
        assert (found[name] == "") == (mistake is None)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.xdist_group("functions")
def test_a_rank_that_raises_is_named():
    code, answer, said = verified("raises_on_last")
    assert (code, answer) == (1, "")
    assert "error: rank 1: wrong_functions:raises_on_last raised ValueError: an odd rank" in said


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.xdist_group("functions")
def test_a_placement_of_the_users_is_asked_in_the_worker():
    code, answer, said = verified("shares_striped", "--placement", "wrong_functions:striped")
    assert code == 0, said
    assert "wrong_functions:shares_striped is right on 2 masks" in answer


def _problem(tokens):
    return Problem(
        mask=build("causal", tokens), heads_q=4, heads_kv=2, head_dim=16, dtype="float32", device=Device("cpu")
    )


@pytest.mark.parametrize("placing", ["contiguous", "zigzag", "balanced"])
def test_placements_hold_every_token_once(placing):
    if placing == "balanced":
        pytest.importorskip("longca_cp")
    found = tokens_of_ranks(placing, _problem(96), 4)
    assert sorted(token for held in found for token in held.tolist()) == list(range(96))
    assert len(found) == 4


def test_zigzag_pairs_the_ends():
    assert tokens_of_ranks("zigzag", _problem(8), 2)[0].tolist() == [0, 1, 6, 7]


@pytest.mark.parametrize(
    ("placing", "kind", "said"),
    [
        ("zigzg", UnknownNameError, "Did you mean zigzag"),
        (lambda mask, ranks: [[0, 1], [1, 2]], RequestError, "returned 4 tokens on 2 ranks; return the positions"),
        (lambda mask, ranks: 1 // 0, RequestError, "<lambda> raised ZeroDivisionError: integer division"),
        (lambda mask, ranks: None, RequestError, "returned a NoneType; return the positions of each rank's tokens"),
    ],
)
def test_placements_that_do_not_fit_are_refused(placing, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        tokens_of_ranks(placing, _problem(4), 2)
