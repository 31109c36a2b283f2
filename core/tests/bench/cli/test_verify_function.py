"""`longca verify --function` and `longca run --function`: wrong functions are named, and errors explained."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from longca.errors import LongCAError
from longca_bench.cli.app import app
from longca_bench.measuring.records import read_records

FOLDER = Path(__file__).parents[1] / "functions"
CAUSAL, DOCUMENTS = ("--mask", "causal", "--seqlen", "96"), ("--mask", "causal_document", "--documents", "50,1,45")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def verify(monkeypatch):
    """Runs the command in the folder of the functions, in this process."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    return lambda name, *options: CliRunner().invoke(
        app, ["verify", "--function", f"wrong_functions:{name}", "--device", "cpu", *options]
    )


def test_the_answer_names_the_mistake_and_the_worst_row(verify):
    ran = verify("joins_documents", *DOCUMENTS)
    assert ran.exit_code == 1
    mask, shape, _, first, said, worst = ran.stdout.splitlines()
    assert mask.startswith("causal_document of 96 tokens, documents of ")
    assert ", float32, forward and backward, on " in shape
    assert first.endswith("wrong_functions:joins_documents is wrong on 1 of 1 mask in float32")
    assert said.startswith("Documents are not separated: queries see keys of other documents. Shown by causal_document")
    assert worst.startswith("worst row: causal_document of 96 tokens: ")


def test_the_json_has_mistakes_and_findings(verify):
    ran = verify("keeps_mask", "--mask", "causal_document", "--head-dim", "16", "--json")
    assert ran.exit_code == 1, ran.output
    found = json.loads(ran.stdout)
    assert not found["passed"]
    assert {each["mistake"] for each in found["masks"]} == {None, "The mask of an earlier call is kept"}
    assert {finding["tensor"] for each in found["masks"] for finding in each["findings"]} >= {"out", "dq", "dk", "dv"}


def test_a_right_function_passes_with_its_nearest_row(verify):
    ran = verify("right", *CAUSAL, "--heads", "4", "--head-dim", "16", "--scale", "0.2", "--dtype", "float64")
    assert ran.exit_code == 0, ran.output
    *_, first, nearest = ran.stdout.splitlines()
    assert first.endswith("wrong_functions:right is right on 2 masks: out, dq, dk, dv in float64")
    assert nearest.startswith("nearest to its limit: causal of 96 tokens: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kernel", "sdpa"), "--function verifies one function, on its own; leave out --kernel"),
        (("--seqlen", "96"), "--seqlen describe a mask without a pattern; name it, such as --mask causal_document"),
        (("--heads", "4x2"), "heads are '4x2'; give query heads that are a multiple of KV heads, such as 64:8"),
        (("--direction", "both"), "unknown direction 'both'"),
        (("--placement", "zigzag"), "--placement shares tokens among ranks, and there are none; start it with"),
        (("--mask", "causal", "--seqlen", "10000000"), "5e+13 visible pairs"),
    ],
)
def test_options_that_do_not_fit_are_refused(verify, options, said):
    ran = verify("right", *options)
    assert isinstance(ran.exception, LongCAError)
    assert said in str(ran.exception)


def test_options_of_a_function_need_one():
    ran = CliRunner().invoke(app, ["verify", "--kernel", "sdpa", "--shape", "bhsd", "--window", "3"])
    assert str(ran.exception).endswith("on every offer of their manifests; leave out --shape and --window")


def test_a_function_that_ends_its_process_is_named(verify):
    ran = verify("exits", *CAUSAL)
    assert ran.exit_code == 1, ran.output
    assert "wrong_functions:exits is wrong on 1 of 1 mask" in ran.stdout
    assert "exited with code 0. Shown by causal of 96 tokens" in ran.stdout


def test_a_function_that_hangs_is_ended():
    about = ("--function", "wrong_functions:hangs", "--device", "cpu", "--timeout", "1", *CAUSAL)
    command = [sys.executable, "-m", "longca", "verify", *about]
    ran = subprocess.run(command, cwd=FOLDER, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    assert "error: wrong_functions:hangs gave no answer on causal of 96 tokens in time; raise --timeout" in ran.stderr


def test_what_a_function_prints_is_no_part_of_the_json(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch.nn.functional import scaled_dot_product_attention as sdpa\nprint('printed')\n\n\n"
        "def attend(q, k, v, attn_mask, scale):\n    print('printed')\n    os.system('echo a child')\n"
        "    return sdpa(q, k, v, attn_mask=attn_mask, scale=scale, enable_gqa=True)\n"
    )
    command = [sys.executable, "-m", "longca", "verify", "--function", "mine:attend", "--shape", "bhsd", *CAUSAL]
    ran = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["passed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("name", "code"), [("right", 0), ("scales_by_width", 1), ("exits", 1), ("writes_to_q", 1)])
def test_a_function_is_verified_on_a_gpu(verify, name, code):
    ran = verify(name, *CAUSAL, "--device", "cuda", "--dtype", "bfloat16")
    assert ran.exit_code == code, ran.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shape", "sbhd"), "the shape is 'sbhd'; give thd, bhsd, bshd"),
        (("--gpus", "2"), "--function and --gpus do not go together"),
    ],
)
def test_options_of_a_run_that_do_not_fit_are_refused(monkeypatch, options, said):
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ran = CliRunner().invoke(app, ["run", "causal", "--function", "wrong_functions:right", *options])
    assert said in str(ran.exception)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "direction", "said", "without_lse"),
    [
        pytest.param("with_lse", "forward", "ok", False, marks=pytest.mark.exhaustive),
        ("right", "backward", "ok", True),
        ("scales_by_width", "forward", "wrong", False),
    ],
)
def test_a_run_measures_functions_and_finds_wrong_ones(tmp_path, name, direction, said, without_lse):
    ran = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "longca", "run", "causal", "--seqlen", "96", "--heads", "4:2"),
            *("--head-dim", "16", "--dtype", "float32", "--device", "cpu", "--direction", direction),
            *("--function", f"wrong_functions:{name}", "--kernel", f"my_{name}", "--out", str(tmp_path / "out")),
        ],
        cwd=FOLDER,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == (said != "ok"), ran.stdout + ran.stderr
    assert f"my_{name} causal 96 {direction}: {said}" in ran.stderr
    (record,) = read_records(tmp_path / "out")
    assert (record.status, record.without_lse) == (said, without_lse)
    tensors = {finding["tensor"].split()[0] for finding in record.findings}
    assert not without_lse or not tensors & {"lse", "counts"}
