import random
from itertools import combinations

import pytest
import torch

from longca import Device, Problem
from longca.masks import build
from longca_bench.verification import head_sample
from longca_bench.verification.head_sample import HeadSample, sample_heads
from longca_bench.verification.inputs import draw_inputs
from longca_bench.verification.reference import reference
from longca_bench.verification.verify import check_backward, check_forward
from longca_builtin.naive import Naive

SEQLEN = 64
CAUSAL = build("causal", SEQLEN)


def problem(heads_q=8, heads_kv=4, mask=CAUSAL, **other):
    asked = {"head_dim": 8, "dtype": "bfloat16", "device": Device("cpu"), "direction": "backward"}
    return Problem(mask=mask, heads_q=heads_q, heads_kv=heads_kv, **{**asked, **other})


def limit_to(monkeypatch, asked, groups):
    pairs = asked.area if asked.mask is CAUSAL else asked.heads_q * SEQLEN**2
    monkeypatch.setattr(head_sample, "SAMPLED_PAIRS", pairs * groups // asked.heads_kv)


class SpoiltHead(Naive):
    """A right kernel that spoils one query head, or one KV head of the gradients, with a number."""

    def __init__(self, name, head, value):
        self._name, self._head, self._value = name, head, value

    def _spoil(self, **tensors):
        if self._name in tensors:
            tensor = tensors[self._name]
            (tensor[self._head] if self._name == "lse" else tensor[:, self._head])[5] = self._value
        return tuple(tensors.values())

    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        return self._spoil(out=out, lse=lse)

    def backward(self, *arguments, **buffers):
        dq, dk, dv = super().backward(*arguments, **buffers)
        return self._spoil(dq=dq, dk=dk, dv=dv)


def verify(kernel, asked):
    inputs = draw_inputs(asked, 0)
    expected = reference(asked, inputs)
    plan = kernel.plan(asked)
    found, out, lse = check_forward(kernel, plan, inputs, expected)
    return found + check_backward(kernel, plan, inputs, out, lse, expected)


def test_few_pairs_need_no_sample():
    assert sample_heads(problem()) is None


@pytest.mark.parametrize(("groups", "few"), [(0, 2), (2, 2), (3, 3)])
def test_heads_are_drawn_among_all(monkeypatch, groups, few):
    limit_to(monkeypatch, problem(), groups)
    samples = [sample_heads(problem(), random.Random(seed)) for seed in range(50)]
    assert {sample.heads_kv for sample in samples} == set(combinations(range(4), few))
    for sample in samples:
        assert sample.heads_q == tuple(2 * head + each for head in sample.heads_kv for each in (0, 1))


@pytest.mark.parametrize("mask_heads", [None, 1, 4, 8])
def test_sampled_rows_are_those_of_the_whole(monkeypatch, mask_heads):
    factors = {"block": 16, "kept": 0.5, "heads": mask_heads}
    mask = build("uniform_block_sparse", SEQLEN, **factors) if mask_heads else CAUSAL
    asked = problem(mask=mask)
    inputs = draw_inputs(asked, 0)
    whole = reference(asked, inputs)
    limit_to(monkeypatch, asked, 2)
    part = reference(asked, inputs)
    assert part.lse.shape == (4, SEQLEN)
    for name, rows in part.rows.items():
        assert torch.equal(rows.value, part.sample.of(name, whole.rows[name].value))
    assert torch.equal(part.lse, part.sample.of("lse", whole.lse))


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
def test_a_wrong_sampled_head_is_named(monkeypatch, name):
    """A wrong head that is not sampled is found on new inputs: `test_new_work`."""
    asked, sample = problem(), HeadSample((1, 3), (2, 3, 6, 7))
    monkeypatch.setattr("longca_bench.verification.reference.sample_heads", lambda problem: sample)
    last = 3 if name in ("dk", "dv") else 7
    assert verify(Naive(), asked).passed
    (finding,) = [f for f in verify(SpoiltHead(name, last, 7.0), asked).failures if f.tensor == name]
    assert (finding.tensor, finding.head, finding.token) == (name, last, 5)


@pytest.mark.parametrize("name", ["out", "lse", "dq", "dk", "dv"])
def test_what_was_not_written_is_found_in_every_head(monkeypatch, name):
    limit_to(monkeypatch, problem(), 2)
    failures = verify(SpoiltHead(name, 1 if name in ("dk", "dv") else 3, torch.nan), problem()).failures
    assert name in {finding.tensor for finding in failures}
    assert all("written" in finding.note for finding in failures)
