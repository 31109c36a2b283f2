"""Megatron's self-attention computes with LongCA what it computes itself, on one device and on two ranks."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longca import Device
from longca.errors import RequestError
from longca.integrations.megatron import zigzag_layout
from longca.integrations.megatron.documents import bounds_of, mask_of

from .trainer_ranks import needs_trainers, said_by_ranks

CORES = [
    f"{ranks} ranks, {comm}, window {window}"
    for ranks, comm in ((1, "p2p"), (2, "p2p"), (2, "all_gather"))
    for window in (None, (5, 0))
]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return said_by_ranks("megatron_ranks.py", tmp_path_factory.mktemp("megatron"), "2")


@needs_trainers
@pytest.mark.slow
@pytest.mark.xdist_group("megatron")
class TestLayer:
    @pytest.mark.parametrize("about", CORES)
    @pytest.mark.parametrize("batch", ["sequences", "documents", "padded documents"])
    def test_its_output_and_gradients_are_megatrons(self, said, batch, about):
        assert max(rank[f"{batch}, {about}"] for rank in said["off"]) < 1e-12

    def test_20_steps_of_a_model_have_megatrons_losses(self, said):
        losses = said["losses"]
        assert losses["own"][-1] < losses["own"][0] - 0.5
        assert losses["one rank"] == pytest.approx(losses["own"], rel=1e-12)
        assert losses["ranks"] == pytest.approx(losses["own"], rel=1e-5), "Megatron's losses are in float32"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("attention_dropout", "attention_dropout=0.1"),
            ("softmax_type", "softmax_type='learnable'"),
            ("qk_clip", "qk_clip=True"),
            ("fp8_dot_product_attention", "fp8_dot_product_attention=True"),
            ("apply_query_key_layer_scaling", "apply_query_key_layer_scaling=True"),
            ("window_size", "window_size=(4, 4)"),
            ("k_channels", "k_channels=24, v_channels=16"),
            ("cp_comm_type", "cp_comm_type='a2a'"),
            ("kernel", "unknown kernel 'nobody'"),
            ("attention_mask", "--no-create-attention-mask-in-dataloader"),
            ("attention_bias", "an attention_bias"),
            ("attn_mask_type", "attn_mask_type arbitrary"),
            ("decode", "as many queries as keys"),
            ("latents", "one head dim"),
            ("qkv_format", "qkv_format 'bshd'"),
            ("cp_group", "a cp_group of its own"),
            ("other keys", "other bounds for keys"),
            ("odd", "one has 3 tokens; pad each document to a multiple of 4"),
        ],
    )
    def test_a_feature_that_longca_lacks_is_refused_by_name(self, said, name, words):
        assert words in said["refused"][name]


def megatron_shard(lengths, rank, ranks):
    """The tokens of a rank: chunks r and 2n − 1 − r of 2n of each document."""
    bounds = np.cumsum([0, *lengths])
    chunks = [np.arange(start, stop).reshape(2 * ranks, -1) for start, stop in pairwise(bounds)]
    return np.concatenate([chunk[[rank, 2 * ranks - 1 - rank]].ravel() for chunk in chunks])


@st.composite
def packs(draw):
    """A number of ranks, documents' lengths, and the lengths with their padding."""
    ranks = draw(st.integers(1, 5))
    padded = draw(st.lists(st.integers(1, 4).map(lambda n: 2 * n * ranks), min_size=1, max_size=6))
    return ranks, [draw(st.integers(1, length)) for length in padded], padded


@pytest.mark.parametrize("strategy", ["ring_p2p", "ring_all_gather"])
@pytest.mark.parametrize("window", [(-1, -1), (3, 0)])
@settings(max_examples=30)
@given(pack=packs())
def test_megatrons_shards_are_a_layout(strategy, window, pack):
    ranks, real, padded = pack
    bounds = tuple(np.cumsum([0, *padded]).tolist())
    mask = mask_of(tuple(np.cumsum([0, *real]).tolist()), bounds, bounds[-1], True, window)
    placed = zigzag_layout(mask, bounds, strategy, {"cp": ranks}, (4, 2), device=Device("cpu"))
    for rank in range(ranks):
        assert placed.positions(rank).tolist() == megatron_shard(padded, rank, ranks).tolist()


@given(pack=packs(), causal=st.booleans())
def test_no_document_sees_padding_or_another(pack, causal):
    _, real, padded = pack
    bounds = tuple(np.cumsum([0, *padded]).tolist())
    seen = mask_of(tuple(np.cumsum([0, *real]).tolist()), bounds, bounds[-1], causal, (-1, -1)).dense()
    for start, length in zip(bounds, real, strict=False):
        rows = seen[start : start + length]
        whole = np.ones((length, length), bool)
        assert np.array_equal(rows[:, start : start + length], np.tril(whole) if causal else whole)
        assert rows.sum() == (length * (length + 1) // 2 if causal else length**2)
        assert not np.delete(seen, np.s_[start : start + length], axis=0)[:, start : start + length].any()


def test_a_document_that_does_not_divide_is_refused():
    mask = mask_of((0, 6, 10), (0, 6, 10), 10, True, (-1, -1))
    with pytest.raises(RequestError, match="one has 6 tokens; pad each document to a multiple of 4"):
        zigzag_layout(mask, (0, 6, 10), "ring_p2p", {"cp": 2}, (4, 2), device=Device("cpu"))
    mask = mask_of((0, 8), (0, 8), 12, True, (-1, -1))
    with pytest.raises(RequestError, match="they end at token 8 of 12"):
        zigzag_layout(mask, (0, 8), "ring_p2p", {"cp": 2}, (4, 2), device=Device("cpu"))


class Packed:
    """The bounds of Megatron's `PackedSeqParams`."""

    def __init__(self, bounds, padded=None):
        self.cu_seqlens_q = self.cu_seqlens_kv = torch.tensor(bounds)
        self.cu_seqlens_q_padded = self.cu_seqlens_kv_padded = None if padded is None else torch.tensor(padded)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "write", [lambda x, y: x.copy_(y), lambda x, y: x.data.copy_(y), lambda x, y: np.copyto(x.numpy(), y.numpy())]
)
def test_bounds_that_change_in_place_are_read_again(write, inference):
    with torch.inference_mode(inference):
        packed = Packed([0, 3, 8], [0, 4, 12])
        assert bounds_of(packed) == ((0, 3, 8), (0, 4, 12))
        write(packed.cu_seqlens_q, torch.tensor([0, 2, 8]))
        assert bounds_of(packed) == ((0, 2, 8), (0, 4, 12))
        packed.cu_seqlens_q_padded = packed.cu_seqlens_kv_padded = None
        assert bounds_of(packed) == ((0, 2, 8), (0, 2, 8))
