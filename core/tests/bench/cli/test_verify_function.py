"""`longca verify --function`: ten wrong functions are named by the command line, and mistakes of the user explained."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from longca.errors import LongCAError, VerificationError
from longca_bench.cli.app import app

FOLDER = Path(__file__).parents[1] / "functions"
CAUSAL, DOCUMENTS = ("--mask", "causal", "--seqlen", "96"), ("--mask", "causal_document", "--documents", "50,1,45")
#: A wrong function, the options that show it, the mistake, and a part of its sentence.
WRONG = {
    "joins_documents": (DOCUMENTS, "documents", "Documents are not separated"),
    "widens_window": (("--mask", "causal_sliding_window", "--seqlen", "96", "--window", "9"), "window", "off by one"),
    "aligns_top_left": ((*CAUSAL, "--seqlen-k", "120"), "alignment", "starts in the top left corner"),
    "hides_own_key": (CAUSAL, "diagonal", "a query does not see its own key"),
    "scales_by_width": (CAUSAL, "scale", "1/D (0.01562) instead of 0.125"),
    "mixes_heads": (CAUSAL, "heads", "query head h reads KV head h mod 2 instead of h div 2"),
    "leaves_nan": ((*CAUSAL, "--seqlen-k", "60"), "empty_rows", "the output there is NaN"),
    "misreads_strides": (CAUSAL, "strides", "contiguous ones give right results"),
    "transposes_mask": (CAUSAL, "transposed", "keys see queries"),
    "computes_in_half": (CAUSAL, "precision", "its errors are those of bfloat16"),
}


@pytest.fixture
def verify(monkeypatch):
    """Runs the command in the folder of the functions, in this process."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda name, *options: CliRunner().invoke(
        app, ["verify", "--function", f"wrong_functions:{name}", "--device", "cpu", *options]
    )


@pytest.mark.parametrize("name", WRONG)
def test_ten_mistakes_are_named(verify, name):
    options, mistake, sentence = WRONG[name]
    ran = verify(name, *options, "--json")
    assert ran.exit_code == 1, ran.output
    found = json.loads(ran.stdout)
    assert [each["mistake"] for each in found["mistakes"]] == [mistake]
    (said,) = found["sentences"]
    assert sentence in said
    assert not found["passed"]


def test_the_answer_names_the_worst_row(verify):
    ran = verify("joins_documents", *DOCUMENTS)
    assert ran.exit_code == 1
    first, said, worst = ran.stdout.splitlines()
    assert first.endswith("wrong_functions:joins_documents is wrong on 1 of 1 mask in float32")
    assert said.startswith("Documents are not separated: queries see keys of other documents. Shown by causal_document")
    assert worst.startswith("worst row: causal_document of 96 tokens: ")


def test_a_right_function_passes_with_its_nearest_row(verify):
    ran = verify("right", *CAUSAL, "--heads", "4", "--head-dim", "16", "--scale", "0.2", "--dtype", "float64")
    assert ran.exit_code == 0, ran.output
    first, nearest = ran.stdout.splitlines()
    assert first.endswith("wrong_functions:right is right on 2 masks: out, dq, dk, dv in float64")
    assert nearest.startswith("nearest to its limit: causal of 96 tokens: ")


def test_what_a_function_prints_is_no_part_of_the_json(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch.nn.functional import scaled_dot_product_attention as sdpa\n\n\n"
        "def attend(q, k, v, attn_mask, scale):\n    print('printed')\n    os.system('echo a child')\n"
        "    return sdpa(q, k, v, attn_mask=attn_mask, scale=scale, enable_gqa=True)\n"
    )
    command = [sys.executable, "-m", "longca", "verify", "--function", "mine:attend", "--shape", "bhsd", *CAUSAL]
    ran = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["passed"]
    assert {"printed", "a child"} <= set(ran.stderr.splitlines())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kernel", "sdpa"), "--function verifies one function, on its own; leave out --kernel"),
        (("--repeat", "2"), "leave out --repeat"),
        (("--seqlen", "96"), "--seqlen describe a mask without a pattern; name it, such as --mask causal_document"),
        (("--heads", "4x2"), "--heads is '4x2'; give query heads and KV heads, such as 4:2"),
        (("--heads", "4:3"), "4 query heads do not divide among 3 KV heads"),
        (("--direction", "both"), "unknown direction 'both'"),
        (("--dtype", "float7"), "unknown dtype 'float7'"),
        (("--placement", "zigzag"), "--placement shares tokens among ranks, and there are none; start it with"),
    ],
)
def test_options_that_do_not_fit_are_refused(verify, options, said):
    ran = verify("right", *options)
    assert isinstance(ran.exception, LongCAError)
    assert said in str(ran.exception)


def test_a_mask_whose_float64_attention_would_take_hours_is_refused(verify):
    ran = verify("right", "--mask", "causal", "--seqlen", "10000000")
    assert isinstance(ran.exception, LongCAError)
    assert "5e+13 visible pairs" in str(ran.exception)
    assert "give a shorter --seqlen" in str(ran.exception)


def test_options_of_a_function_need_one():
    ran = CliRunner().invoke(app, ["verify", "--kernel", "sdpa", "--shape", "bhsd", "--window", "3"])
    assert str(ran.exception).endswith("on every offer of their manifests; leave out --shape and --window")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exits", "on causal of 96 tokens: the worker exited with code 0. Shown by causal of 96 tokens"),
        ("raises_what_cannot_be_said", "<Unsayable, whose text cannot be made: SystemExit>"),
        ("sets_dtype", "changes global state: default dtype"),
        ("patches_the_check", "worst row: causal of 96 tokens: "),
    ],
)
def test_a_function_reaches_nothing_of_the_command(verify, name, said):
    ran = verify(name, *CAUSAL)
    assert ran.exit_code == 1, ran.output
    assert isinstance(ran.exception, SystemExit)
    assert f"wrong_functions:{name} is wrong on 1 of 1 mask" in ran.stdout
    assert said in ran.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("name", "code"), [("right", 0), ("scales_by_width", 1), ("exits", 1), ("writes_to_q", 1)])
def test_a_function_is_verified_on_a_gpu(verify, name, code):
    ran = verify(name, *CAUSAL, "--device", "cuda", "--dtype", "bfloat16")
    assert ran.exit_code == code, ran.output
    assert type(ran.exception) in (type(None), SystemExit), "a wrong function is an answer, and no error"


def test_an_import_that_ends_its_process_is_told(tmp_path, monkeypatch):
    (tmp_path / "exits_at_once.py").write_text("import os\n\nprint('so long')\nos._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["verify", "--function", "exits_at_once:attend", "--device", "cpu", *CAUSAL])
    assert isinstance(ran.exception, VerificationError)
    said = "exits_at_once:attend while it was imported: the worker exited with code 0. Its last words: so long"
    assert str(ran.exception) == said


def test_a_function_that_hangs_is_ended():
    asked = ("--function", "wrong_functions:hangs", "--device", "cpu", "--timeout", "1", *CAUSAL)
    ran = subprocess.run(
        [sys.executable, "-m", "longca", "verify", *asked], cwd=FOLDER, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1
    said = (
        "error: wrong_functions:hangs gave no answer on causal of 96 tokens within 1 s; raise --timeout if it is only"
    )
    assert said in ran.stderr
