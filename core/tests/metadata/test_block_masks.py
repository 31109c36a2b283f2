"""Block masks of FlexAttention come in and go out without a pair more or less."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

import longca
from longca import masks
from longca.errors import MaskError
from longca.metadata.block_masks import to_block_mask

CPU = torch.device("cpu")
DOCUMENT = torch.tensor([0] * 100 + [1] * 60 + [2] * 140)


def documents(b, h, q, k):
    return (DOCUMENT[q] == DOCUMENT[k]) & (q >= k)


def by_row_and_head(b, h, q, k):
    return q + 5 * b >= k + 3 * h


@pytest.mark.parametrize("block", [16, 128])
def test_a_block_mask_is_the_mask_of_its_function(block):
    mask = masks.from_block_mask(create_block_mask(documents, None, None, 300, 300, device="cpu", BLOCK_SIZE=block))
    assert mask == masks.build("causal_document", 300, documents=[100, 60, 140])


@pytest.mark.parametrize(("row", "head"), [(0, 0), (1, 2)])
def test_rows_and_heads_are_taken_one_by_one(row, head):
    made = create_block_mask(by_row_and_head, 2, 3, 40, 56, device="cpu", BLOCK_SIZE=16)
    wanted = create_mask(by_row_and_head, 2, 3, 40, 56, device="cpu")[row, head]
    assert np.array_equal(masks.from_block_mask(made, row=row, head=head).dense(), wanted.numpy())


def test_a_block_mask_that_leaves_a_choice_is_refused():
    made = create_block_mask(by_row_and_head, 2, 3, 40, 56, device="cpu", BLOCK_SIZE=16)
    with pytest.raises(MaskError, match="has 2 rows; give row="):
        masks.from_block_mask(made)
    with pytest.raises(MaskError, match="has 3 heads; give head="):
        masks.from_block_mask(made, row=1)
    with pytest.raises(MaskError, match="head is 3; the block mask has 3 heads"):
        masks.from_block_mask(made, row=1, head=3)
    for row in ("a", 0.5, True):
        with pytest.raises(MaskError, match="give an integer from 0"):
            masks.from_block_mask(made, row=row, head=0)
    with pytest.raises(MaskError, match="give the whole one"):
        masks.from_block_mask(made[1, 2])


@pytest.mark.parametrize("seqlen_k", [200, 333])
def test_a_mask_goes_out_and_comes_back(seqlen_k):
    mask = masks.build("causal_sliding_window", 200, seqlen_k=seqlen_k, window=70)
    made = to_block_mask(mask, CPU, block_size=32)
    assert masks.from_block_mask(made) == mask
    assert np.array_equal(create_mask(made.mask_mod, 1, 1, 200, seqlen_k, device="cpu")[0, 0].numpy(), mask.dense())
    same = create_block_mask(made.mask_mod, None, None, 200, seqlen_k, device="cpu", BLOCK_SIZE=32)
    assert torch.equal(made.to_dense(), same.to_dense())
    # A last block that is shorter is full here if all its tokens are visible, and partial in PyTorch.
    assert torch.equal(made.q_num_blocks + made.full_q_num_blocks, same.q_num_blocks + same.full_q_num_blocks)
    assert (made.q_num_blocks <= same.q_num_blocks).all()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_it():
    mask = masks.build("prefix_lm_document", 300, documents=[100, 60, 140], prefix=30)
    q, k, v = (torch.randn(300, 2, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    out = flex_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), block_mask=to_block_mask(mask, "cpu"))
    torch.testing.assert_close(out[0].transpose(0, 1), longca.attention(q, k, v, mask))


def test_masks_of_several_heads_are_refused():
    several = masks.sample("uniform_block_sparse", 64, block=16, kept=0.5, heads=2, seed=0)
    with pytest.raises(MaskError, match=r"2 heads .* differ; convert them one by one"):
        to_block_mask(several, CPU)
    assert masks.from_block_mask(to_block_mask(several.head(1), CPU, block_size=16)) == several.head(1)
