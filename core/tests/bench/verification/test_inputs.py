import pytest
import torch

from longca import Device, Problem
from longca.masks import build
from longca_bench.verification import inputs
from longca_bench.verification.inputs import draw_inputs

ASKED = Problem(
    mask=build("causal", 64),
    heads_q=8,
    heads_kv=2,
    head_dim=16,
    dtype="bfloat16",
    device=Device("cpu"),
    direction="backward",
)
NAMES = ("q", "k", "v", "dout")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks that no tensor is a multiple of."""
    monkeypatch.setattr(inputs, "_CHUNK", 300)


def test_tensors_chunks_and_seeds_differ(small_chunks):
    drawn = draw_inputs(ASKED, 0)
    chunks = [chunk for name in NAMES for chunk in getattr(drawn, name).flatten().split(300)]
    chunks += draw_inputs(ASKED, 1).q.flatten().split(300)
    heads = [tuple(chunk[:16].tolist()) for chunk in chunks]
    assert len(set(heads)) == len(heads)


def test_numbers_are_standard_normal(small_chunks):
    drawn = torch.cat([getattr(draw_inputs(ASKED, 0), name).flatten().float() for name in NAMES])
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.03
