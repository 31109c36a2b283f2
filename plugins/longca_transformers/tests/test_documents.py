"""Documents of a batch, in every form in which people give them: each is computed as documents, or refused by name."""

from typing import NamedTuple

import pytest
import torch

from longca.errors import LongCAError

from .models import COMMON, make, stablelm, tokens, transformers

pytestmark = pytest.mark.usefixtures("registered")

OLD = transformers.__version__.startswith("4.")
#: The document of each token, from 1. Padding is 0.
IDS = torch.tensor([[1] * 5 + [2] * 9 + [3] * 7 + [0] * 3])
WHOLE = torch.tensor([[1] * 5 + [2] * 9 + [3] * 10])
STARTING = torch.cat([torch.arange(length) for length in (5, 9, 10)])[None]
BOUNDS = torch.tensor([0, 5, 14, 24], dtype=torch.int32)


def gpt2():
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 61, "n_positions": 64}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


def opt():
    """It makes its positions of the mask's numbers."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "vocab_size": 61, "word_embed_proj_dim": 32, "ffn_dim": 48}
    return transformers.OPTForCausalLM(transformers.OPTConfig(**sizes, num_hidden_layers=2, max_position_embeddings=64))


def lfm2():
    """Its convolutions multiply by the mask's numbers."""
    config = transformers.Lfm2Config(**COMMON, num_hidden_layers=2, layer_types=["conv", "full_attention"])
    return transformers.Lfm2ForCausalLM(config)


def minimax():
    """Its linear attention multiplies by the mask's numbers."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    kinds = ["linear_attention", "full_attention"]
    return transformers.MiniMaxForCausalLM(
        transformers.MiniMaxConfig(**COMMON, **experts, num_hidden_layers=2, layer_types=kinds)
    )


def vision(name="Qwen2_5_VL"):
    """Positions of time, height and width."""
    rotary = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    text = {**COMMON, "num_hidden_layers": 2, ("rope_scaling" if OLD else "rope_parameters"): rotary}
    sizes = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=sizes)
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def named(name):
    return lambda: make(name, torch.float32)


MODELS = {
    "llama": named("llama"),
    "mistral": named("mistral"),
    "gemma": named("gemma"),
    "stablelm": stablelm,
    "gpt2": gpt2,
    "opt": opt,
    "qwen2.5-vl": vision,
}


class Form(NamedTuple):
    """Documents as arguments of a call.

    Attributes:
        given: The arguments.
        ids: The document of each token.
        read_by: The models that compute them. Others refuse them.
    """

    given: dict
    ids: torch.Tensor = WHOLE
    read_by: frozenset = frozenset()


BY_NUMBERS = frozenset({"llama", "mistral", "gemma", "stablelm", "gpt2"})
FORMS = {
    "attention_mask": Form({"attention_mask": IDS}, IDS, BY_NUMBERS),
    "attention_mask of floats": Form({"attention_mask": IDS.float()}, IDS, BY_NUMBERS),
    "attention_mask padded on the left": Form({"attention_mask": IDS.flip(1)}, IDS.flip(1), BY_NUMBERS),
    "attention_mask with padding within": Form(
        {"attention_mask": WHOLE * (torch.arange(24) % 4 != 1)}, WHOLE * (torch.arange(24) % 4 != 1), BY_NUMBERS
    ),
    "attention_mask and positions": Form({"attention_mask": WHOLE, "position_ids": STARTING}, WHOLE, frozenset(MODELS)),
    "attention_mask of another order": Form({"attention_mask": torch.tensor([[1] * 5 + [2] * 9 + [1] * 10])}),
    "attention_mask of scores": Form({"attention_mask": torch.where(IDS > 0, 0.0, -1e9)}),
    "attention_mask of three dims": Form({"attention_mask": (WHOLE[0] == WHOLE.T)[None].tril()}),
    "seq_idx": Form({"seq_idx": WHOLE.int() - 1}, WHOLE, frozenset(MODELS)),
    "seq_idx and positions": Form({"seq_idx": WHOLE.int() - 1, "position_ids": STARTING}, WHOLE, frozenset(MODELS)),
    "seq_idx of other tokens": Form({"seq_idx": WHOLE[:, 5:].int()}),
    "cu_seq_lens_q": Form({"cu_seq_lens_q": BOUNDS, "cu_seq_lens_k": BOUNDS}, WHOLE, frozenset(MODELS) - {"stablelm"}),
    "cu_seq_lens_q of fewer tokens": Form({"cu_seq_lens_q": BOUNDS[:-1], "cu_seq_lens_k": BOUNDS[:-1]}),
    **{name: Form({name: WHOLE}) for name in ("segment_ids", "document_ids", "doc_ids", "sequence_ids", "sample_ids")},
    **{name: Form({name: BOUNDS}) for name in ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "document_starts")},
    **{name: Form({name: [5, 9, 10]}) for name in ("seq_lens", "seqlens", "lengths", "doc_lens", "sequence_lengths")},
}


def logits(model, implementation, **batch):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(input_ids=tokens(1, 24), use_cache=False, **batch).logits[0]


def dense(ids, window):
    """The pairs of one document in which the query is not before the key, and within a window."""
    steps = torch.arange(24)[:, None] - torch.arange(24)
    return ((ids[0] == ids.T) & (ids[0] > 0) & (steps >= 0) & (steps < window))[None, None]


def wanted(name, model, form):
    """The logits by eager attention, whose masks are tensors of four dims."""
    positions = form.given.get("position_ids", torch.arange(24)[None])
    scores = {window: torch.zeros(1, 1, 24, 24).masked_fill(~dense(form.ids, window), -1e9) for window in (5, 7, 10**6)}
    given = {
        "gemma": {"sliding_attention": scores[5], "full_attention": scores[10**6]},
        "mistral": scores[7],
    }
    return logits(model, "eager", attention_mask=given.get(name, scores[10**6]), position_ids=positions)


@pytest.mark.skipif(OLD, reason="transformers 4 has other models that keep arguments from their layers")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_documents_in_every_form_are_computed_or_refused(name, form):
    torch.manual_seed(3)
    model, asked = MODELS[name]().eval(), FORMS[form]
    if name not in asked.read_by:
        with pytest.raises((LongCAError, ValueError, TypeError)):
            logits(model, "longca", **asked.given)
        return
    real = asked.ids[0] > 0
    found = logits(model, "longca", **asked.given)
    torch.testing.assert_close(found[real], wanted(name, model, asked)[real], rtol=1e-4, atol=2e-5)


@pytest.mark.skipif(OLD, reason="transformers 4 computes both without the mask interface")
@pytest.mark.parametrize("build", [lfm2, minimax])
def test_layers_that_compute_with_the_numbers_are_refused(build):
    with pytest.raises(LongCAError, match="has layers with a state, which multiply by them"):
        logits(build().eval(), "longca", attention_mask=IDS)


def test_positions_of_three_axes_are_read():
    torch.manual_seed(3)
    model = vision().eval()
    exact = wanted("qwen2.5-vl", model, Form({"position_ids": STARTING.expand(3, 1, -1)}))
    for shape in ([1, 24], [3, 1, 24], [4, 1, 24]):
        if shape[0] == 4 or OLD:  # transformers 4 reads text's positions from the first axis
            found = logits(model, "longca", position_ids=STARTING.expand(shape))
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=2e-5)
        else:
            with pytest.raises(LongCAError, match="start again at token 5"):
                logits(model, "longca", position_ids=STARTING.expand(shape))
    image = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]]) + 3
    one = torch.cat([torch.arange(3).expand(3, -1), image, torch.arange(5, 22).expand(3, -1)], dim=1)[:, None]
    torch.testing.assert_close(
        logits(model, "longca", position_ids=one), logits(model, "eager", position_ids=one), rtol=1e-4, atol=2e-5
    )
    if not OLD:
        with pytest.raises(LongCAError, match="start again at token 12"):
            logits(model, "longca", position_ids=torch.cat([one[..., :12], one[..., :12]], dim=2))


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_a_tensor_of_four_dims_takes_the_place_of_windows_as_with_sdpa(name):
    model, given = make(name).eval(), dense(WHOLE, 10**6)
    found = logits(model, "longca", attention_mask=given)
    torch.testing.assert_close(found, logits(model, "sdpa", attention_mask=given), rtol=0, atol=1e-9)


def paligemma():
    vision_config = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "patch_size": 4}
    vision_config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "projection_dim": 32}
    text = {**COMMON, "num_hidden_layers": 2, "model_type": "gemma", "head_dim": 8, "vocab_size": 70}
    config = transformers.PaliGemmaConfig(
        text_config=text, vision_config=vision_config, projection_dim=32, image_token_index=69
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


@pytest.mark.skipif(OLD, reason="PaliGemma of transformers 4.56 makes its masks as tensors")
@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("prefix", [0, 9])
def test_a_mask_that_an_outer_model_makes_is_taken(prefix, is_training):
    torch.manual_seed(3)
    model = paligemma().train(is_training)
    batch = {"token_type_ids": (torch.arange(24) >= prefix).long()[None], "attention_mask": (IDS > 0).long()}
    found, by_eager = (logits(model, each, **batch)[:21] for each in ("longca", "eager"))
    torch.testing.assert_close(found, by_eager, rtol=1e-4, atol=2e-5)
