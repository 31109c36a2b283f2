"""Packed documents that transformers hides from masks are refused in every model, and padding is none of them."""

import pytest
import torch

from longca import masks
from longca.errors import RequestError
from longca_transformers import using
from longca_transformers.boundaries import (
    LostStart,
    lost_start,
)

from .models import COMMON, make, packed, tokens, transformers

pytestmark = pytest.mark.usefixtures("registered")

OLD = transformers.__version__.startswith("4.")
HIDES = {"cache": {"use_cache": True}, "padding": {"attention_mask": torch.ones(1, 24)}}


def llama4():
    config = transformers.Llama4TextConfig(
        **COMMON, num_hidden_layers=2, head_dim=8, num_local_experts=2, intermediate_size_mlp=48
    )
    return transformers.Llama4ForCausalLM(config)


def persimmon():
    """It gives its layers no positions, as Llama 4."""
    return transformers.PersimmonForCausalLM(transformers.PersimmonConfig(**COMMON, num_hidden_layers=1))


def opt():
    """It makes its masks without positions."""
    sizes = {name: COMMON[name] for name in ("hidden_size", "num_attention_heads", "vocab_size", "pad_token_id")}
    config = transformers.OPTConfig(
        **sizes, num_hidden_layers=1, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, max_position_embeddings=64
    )
    return transformers.OPTForCausalLM(config)


def ready(model):
    model.set_attn_implementation("longca")
    return model


@pytest.mark.parametrize("hides", HIDES)
@pytest.mark.parametrize(
    "build", [lambda: make("llama"), llama4, *([] if OLD else [persimmon])], ids=lambda build: build.__name__
)
def test_documents_that_transformers_hides_from_masks_are_refused(build, hides):
    model = ready(build())
    with pytest.raises(RequestError, match=r"start again at token 20, .* give use_cache=False"):
        model(**packed(20, 4), **HIDES[hides])
    with using(masks.build("causal", 24)):
        model(**packed(20, 4), **HIDES[hides])
    model(**packed(24), **HIDES[hides])
    model(**packed(20, 4), use_cache=False)


def granite():
    config = transformers.GraniteMoeConfig(**COMMON, num_hidden_layers=1, num_local_experts=2, num_experts_per_tok=1)
    return transformers.GraniteMoeForCausalLM(config)


#: Models that make their masks without positions. Some of transformers 4 make them without the mask interface.
WITHOUT_POSITIONS = [opt, *([persimmon, granite] if OLD else [])]


@pytest.mark.parametrize("build", WITHOUT_POSITIONS)
def test_a_model_that_makes_masks_without_positions_is_told_to_give_a_mask(build):
    model, own = ready(build()).eval(), masks.build("causal_document", 24, documents=[20, 4])
    with pytest.raises(RequestError, match=r"makes its masks without position_ids.*; give the mask by using"):
        model(**packed(20, 4), use_cache=False)
    dense = torch.from_numpy(own.dense())[None, None]
    found = model(**packed(20, 4), attention_mask=dense, use_cache=False).logits
    alone = model(input_ids=packed(20, 4)["input_ids"][:, 20:], use_cache=False).logits
    torch.testing.assert_close(found[:, 20:], alone)
    if OLD:
        with pytest.raises(RequestError, match=r"no model took the mask of using\(mask\)"), using(own):
            model(**packed(24), use_cache=False)
    else:
        with using(own):
            assert torch.equal(model(**packed(20, 4), use_cache=False).logits, found)


def nemotron():
    config = transformers.NemotronConfig(**COMMON, num_hidden_layers=1)
    return transformers.NemotronForCausalLM(config)


def stablelm():
    return transformers.StableLmForCausalLM(transformers.StableLmConfig(**COMMON, num_hidden_layers=1))


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_head=4, n_layer=1, vocab_size=61, n_positions=64)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("build", [gpt2, granite] if OLD else [nemotron, stablelm])
def test_arguments_that_a_model_keeps_from_its_layers_are_refused(build):
    model, ids = ready(build()).eval(), tokens(1, 24)
    plain = model(input_ids=ids, use_cache=False).logits
    with pytest.raises(RequestError, match=r"gives longca_mask, and the model does not pass it on .* by using\(mask\)"):
        model(input_ids=ids, use_cache=False, longca_mask=masks.build("full", 24))
    bounds = {"cu_seq_lens_q": torch.tensor([0, 20, 24]), "cu_seq_lens_k": torch.tensor([0, 20, 24])}
    with pytest.raises(RequestError, match=r"gives cu_seq_lens_q, .* give position_ids that start again"):
        model(input_ids=ids, use_cache=False, **bounds)
    if build is not granite:  # which reads no boundaries from positions
        both = model(**packed(20, 4), use_cache=False, **bounds).logits
        assert torch.equal(both, model(**packed(20, 4), use_cache=False).logits)
    assert torch.equal(model(input_ids=ids, use_cache=False, longca_mask=None).logits, plain)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
def test_a_compiled_model_refuses_them_too():
    torch._dynamo.reset()
    compiled = torch.compile(ready(llama4()), backend="eager")
    with pytest.raises(RequestError, match="start again at token 20"):
        compiled(**packed(20, 4))


@pytest.mark.parametrize(
    ("positions", "lost"),
    [
        ([0, 1, 2, 3, 4, 5], None),
        ([0, 1, 2, 9, 3, 4], None),  # the padding is not counted
        ([0, 1, 2, 9, 0, 1], LostStart(0, 4)),
        ([0, 1, 0, 1, 2, 3], LostStart(0, 2)),
    ],
)
def test_a_document_behind_padding_is_found(positions, lost):
    causal = masks.build("causal", 6).head(0)
    shown = masks.SliceMask([masks.Slice(0, 6, 0, 3), masks.Slice(0, 6, 4, 6)], 6, 6)
    assert lost_start(torch.tensor([positions]), [causal & shown]) == lost
