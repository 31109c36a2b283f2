"""A function as a kernel: it is right like any kernel, and `longca run --function` measures it."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from longca import masks
from longca.errors import RequestError, VerificationError
from longca.testing import verify
from longca_bench.cli.app import app
from longca_bench.functions.as_kernel import FunctionKernel
from longca_bench.functions.distribution import install
from longca_bench.measuring.records import read_records

CODE = """
import torch

def packed(q, k, v, attn_mask, scale):
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = (torch.einsum("ihd,jhd->hij", q, k) * scale).masked_fill(~attn_mask, -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v), scores.logsumexp(-1)

def batched(q, k, v, attn_mask, scale):
    out, lse = packed(*(x[0].transpose(0, 1) for x in (q, k, v)), attn_mask, scale)
    return out.transpose(0, 1)[None], lse[None]

def out_alone(q, k, v, attn_mask, scale):
    return packed(q, k, v, attn_mask, scale)[0]

def scales_wrong(q, k, v, attn_mask):
    return packed(q, k, v, attn_mask, 1.0)[0]

calls = []

def forgets_lse(q, k, v, attn_mask, scale):
    calls.append(None)
    out, lse = packed(q, k, v, attn_mask, scale)
    return (out, lse) if len(calls) < 4 else out
"""
MASK = masks.build("causal_document", 96, documents=(50, 1, 45))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_measured.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_measured", raising=False)
    return tmp_path


@pytest.mark.parametrize(("name", "shape"), [("packed", "thd"), ("batched", "bhsd")])
def test_a_function_is_a_right_kernel(folder, name, shape):
    assert verify(FunctionKernel(f"my_measured:{name}", shape), MASK).passed


def test_without_a_log_sum_exp_a_function_is_no_kernel_of_a_plugin(folder):
    with pytest.raises(VerificationError, match=r"is wrong: lse: error inf of token 0, head [0-9]"):
        verify(FunctionKernel("my_measured:out_alone", "thd"), MASK)


def test_names_are_those_of_kernels(folder, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert install("my_measured:Some.Thing", "thd") == "my_thing"
    with pytest.raises(RequestError, match="the function is 'attention'; give MODULE:FUNCTION"):
        install("attention", "thd")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shape", "sbhd"), "--shape is 'sbhd'; give thd, bhsd or bshd"),
        (("--nproc", "2"), "--function is measured on one device; leave out --nproc and --strategy"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said):
    ran = CliRunner().invoke(app, ["run", "causal", "--function", "my_measured:packed", *options])
    assert said in str(ran.exception)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "direction", "said", "without_lse"),
    [
        pytest.param("packed", "forward", "ok", False, marks=pytest.mark.exhaustive),
        pytest.param("out_alone", "forward", "ok", True, marks=pytest.mark.exhaustive),
        ("out_alone", "backward", "ok", True),
        ("scales_wrong", "forward", "wrong", False),
        pytest.param("forgets_lse", "forward", "wrong", False, marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_measures_functions_and_finds_wrong_ones(folder, name, direction, said, without_lse):
    ran = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "longca", "run", "causal", "--seqlen", "96", "--heads", "4:2"),
            *("--head-dim", "16", "--dtype", "float32", "--device", "cpu", "--direction", direction),
            *("--function", f"my_measured:{name}", "--kernel", f"my_{name}", "--out", "out"),
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "LONGCA_HISTORY": str(folder / "history.jsonl")},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == (said != "ok"), ran.stdout + ran.stderr
    assert f"my_{name} causal 96 {direction}: {said}" in ran.stderr
    (record,) = read_records(folder / "out")
    assert (record.status, record.without_lse) == (said, without_lse)
    assert (f"my_{name} gave no log-sum-exp of [heads, tokens], so none was checked" in ran.stderr) == without_lse
    tensors = {finding["tensor"].split()[0] for finding in record.findings}
    assert not without_lse or not tensors & {"lse", "counts"}
