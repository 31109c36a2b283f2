import pytest
import torch

from longca import Device, Problem, masks
from longca_bench.verification import reference as module
from longca_bench.verification import tokens
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import part_reference, reference
from longca_builtin import blockwise

from ..peak import Peak


def test_matches_autograd(setup):
    made = setup()
    q, k, v = (x.double().requires_grad_() for x in (made.inputs.q, made.inputs.k, made.inputs.v))
    seen = torch.from_numpy(made.problem.mask.dense())
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(2, 1)) * made.problem.scale
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(2, 1))
    grads = torch.autograd.grad(out, (q, k, v), made.inputs.dout.double())
    for name, value in zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True):
        torch.testing.assert_close(made.expected.rows[name].value, value, rtol=0, atol=1e-12)


def test_part_and_rest_make_the_whole(setup):
    """Gradients of the two halves of the keys, each as a part, are the whole's."""
    whole = setup()
    mask, n = whole.problem.mask, 120
    halves = [mask.cut([(0, 300)], [keys]) for keys in ((0, n), (n, 300))]
    inputs = [
        module.Inputs(whole.inputs.q, whole.inputs.k[keys], whole.inputs.v[keys], whole.inputs.dout)
        for keys in (slice(0, n), slice(n, 300))
    ]
    problems = [whole.problem.with_mask(half) for half in halves]
    alone = [reference(p, x) for p, x in zip(problems, inputs, strict=True)]
    results = [(r.rows["out"].value, r.lse) for r in alone]
    parts = [part_reference(problems[i], inputs[i], results[1 - i]) for i in (0, 1)]
    rows = whole.expected.rows
    torch.testing.assert_close(parts[0].merged[0], rows["out"].value)
    torch.testing.assert_close(parts[0].rows["dq"].value + parts[1].rows["dq"].value, rows["dq"].value)
    for name in ("dk", "dv"):
        torch.testing.assert_close(torch.cat([p.rows[name].value for p in parts]), rows[name].value)


def test_float32_above_a_size(setup, monkeypatch):
    assert setup().expected.dtype == torch.float64
    monkeypatch.setattr(module, "FLOAT64_PAIRS", 10)
    assert setup().expected.dtype == torch.float32


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
def test_spread_is_what_rounding_does(setup, name):
    """Rounding each term on its own moves a row by about its spread: PyTorch's float32 does, within a small factor."""
    rows = setup().expected.rows[name]
    ratio = rows.pytorch.double() / (rows.spread.double() * torch.finfo(torch.float32).eps).clamp_min(1e-30)
    assert 0.05 < float(ratio[ratio > 0].median()) < 16
    assert float(ratio.max()) < 100


def test_a_reference_in_float64_takes_little_memory(monkeypatch):
    """No whole input is turned into float64, which takes four times its memory, and no result is kept so. Nor are whole
    rows compared at once."""
    monkeypatch.setattr(tokens, "_TOGETHER", 64)
    monkeypatch.setitem(blockwise._SCORES, "cpu", 2**15)
    mask = masks.build("causal_sliding_window", 2048, window=64)
    about = {"heads_q": 8, "heads_kv": 1, "head_dim": 64, "dtype": "bfloat16", "device": Device("cpu")}
    problem = Problem(mask=mask, **about, direction="backward")
    inputs = draw_inputs(problem, 0)
    with Peak() as peak:
        made = reference(problem, inputs)
    assert made.dtype == torch.float64
    assert all(rows.value.dtype == torch.float32 for rows in made.rows.values())
    # out and dq are kept in float32, and dk, dv and each row's distances are smaller.
    assert peak.now < 7.5 * inputs.q.nbytes
    # While dq is made, it is there in float64, with out and dq in bfloat16, and dk and dv for each head in float32.
    assert peak.most < 15 * inputs.q.nbytes
