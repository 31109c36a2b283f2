"""What models of transformers ask for and LongCA cannot compute is refused, and what is harmless is taken."""

import ast
import inspect
from pathlib import Path

import pytest
import torch

from longca import masks
from longca.errors import RequestError, UnsupportedError
from longca_transformers import LayerMask, check, register, using
from longca_transformers import layers as longca_layers

from .models import BATCHES, assert_same, make, packed, step, tokens, transformers

pytestmark = pytest.mark.usefixtures("registered")


def test_boundaries_of_documents_can_be_required():
    register("longca_packed", require_documents=True)
    model = make("llama")
    with pytest.raises(RequestError, match="no boundaries of documents"):
        step(model, {"input_ids": tokens(1, 24)}, "longca_packed")
    step(model, packed(20, 4), "longca_packed")
    step(model, {"input_ids": tokens(1, 24)}, "longca_packed", cu_seq_lens_q=torch.tensor([0, 20, 24]))
    step(model, {"input_ids": tokens(1, 24)}, "longca_packed", longca_mask=masks.build("causal", 24))


def test_a_static_cache_is_refused():
    model = make("llama", torch.float32).eval()
    model.set_attn_implementation("longca")
    with pytest.raises(UnsupportedError, match="leave cache_implementation away"):
        model.generate(tokens(1, 9), max_new_tokens=2, do_sample=False, cache_implementation="static")


OF_THEIR_OWN = {
    "Bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4},
    "GPTNeoXJapanese": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
}


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_a_model_with_an_attention_of_its_own_is_refused(name):
    config = getattr(transformers, f"{name}Config")(vocab_size=61, **OF_THEIR_OWN[name])
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="longca")
    if transformers.__version__.startswith("4."):
        check(model)  # transformers 4 asks for no mask of these models
    with pytest.raises(UnsupportedError, match=r"does not take .* from AttentionInterface"):
        model(input_ids=tokens(1, 24), use_cache=False)


def test_a_model_that_keeps_another_attention_is_refused_by_a_check():
    config = transformers.BloomConfig(vocab_size=61, **OF_THEIR_OWN["Bloom"])
    model = transformers.BloomForCausalLM(config)
    model.set_attn_implementation("longca")  # transformers logs that it changes nothing
    check(model)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="BloomForCausalLM computed its attention without LongCA"):
            model(input_ids=tokens(1, 24), use_cache=False)


#: Models of both releases that transformers computes without asking for an attention or for masks.
WITHOUT_A_WORD = {
    "OpenAIGPTLMHeadModel": {"n_embd": 32, "n_layer": 1, "n_head": 4},
    "ProphetNetForCausalLM": {"hidden_size": 32, "num_decoder_layers": 1, "num_decoder_attention_heads": 4},
}


@pytest.mark.parametrize("name", WITHOUT_A_WORD)
def test_a_model_that_never_asks_is_refused_by_a_check(name):
    model_class = getattr(transformers, name)
    config = model_class.config_class(vocab_size=61, **WITHOUT_A_WORD[name])
    model = model_class._from_config(config, attn_implementation="longca").eval()
    model(input_ids=tokens(1, 12), use_cache=False)
    check(model)
    with pytest.raises(UnsupportedError, match=f"{name} computed its attention without LongCA"):
        model(input_ids=tokens(1, 12), use_cache=False)


@pytest.mark.parametrize("name", ["Falcon", "GPTNeo"])
def test_a_model_with_a_list_of_attentions_is_refused_when_it_is_made(name):
    sizes = {"GPTNeo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]}}.get(name, {})
    config = getattr(transformers, f"{name}Config")(hidden_size=32, num_attention_heads=4, vocab_size=61, **sizes)
    with pytest.raises(UnsupportedError, match=f"{name}Config take their attention from a list of their own"):
        getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="longca")


def test_a_mask_that_accelerate_takes_away_is_named():
    big_modeling = pytest.importorskip("accelerate.big_modeling")
    model = make("llama")
    getattr(big_modeling, "_attach_context_parallel_hooks")(model)  # noqa: B009 - what `cp_size` makes Accelerator do
    with pytest.raises(UnsupportedError, match=r"accelerate's context parallelism takes the mask .* set cp_size=1"):
        step(model, packed(20, 4), "longca")


#: What models give their layers, and does not change the result. A mask says what is causal.
HARMLESS = {"is_causal", "position_ids", "max_length_q", "max_length_k", "deterministic"}


@pytest.mark.exhaustive
def test_every_argument_that_a_model_of_transformers_gives_its_layers_is_known():
    known = HARMLESS | set(longca_layers._REFUSED) | set(inspect.signature(longca_layers.attend.__wrapped__).parameters)
    models = Path(transformers.__file__).parent / "models"
    given = {}
    for file in models.rglob("modeling_*.py"):
        if "attention_interface(" in (text := file.read_text(encoding="utf-8")):
            calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            of_layers = (call for call in calls if getattr(call.func, "id", "") == "attention_interface")
            given |= {keyword.arg: file.stem for call in of_layers for keyword in call.keywords if keyword.arg}
    assert len(given) > 8
    assert {name: where for name, where in given.items() if name not in known | {"query", "key", "value"}} == {}


def test_a_tensor_with_a_mask_for_each_head_is_refused():
    model, each = make("llama"), torch.ones(1, 4, 24, 24, dtype=torch.bool).tril()
    model.set_attn_implementation("longca")
    with pytest.raises(RequestError, match=r"the shape \[1, 4, 24, 24\], .* give \[rows, 1, queries, keys\]"):
        model(input_ids=tokens(1, 24), attention_mask=each, use_cache=False)


@pytest.mark.parametrize("mask", ["causal", [], 3, torch.ones(24, 24)])
def test_a_mask_that_is_none_is_refused(mask):
    with pytest.raises(RequestError, match=rf"your mask is a {type(mask).__name__}; .*masks.from_dense"), using(mask):
        pass
    with pytest.raises(RequestError, match=r"give a mask of longca.masks"):
        step(make("llama"), BATCHES["plain"], "longca", longca_mask=mask)


@pytest.mark.parametrize(
    ("implementation", "arguments"),
    [("sdpa", {}), ("longca", {"attention_mask": torch.ones(1, 1, 24, 24, dtype=torch.bool).tril()})],
)
def test_a_mask_that_no_model_takes_is_refused(implementation, arguments):
    model = make("llama")
    model.set_attn_implementation(implementation)
    with pytest.raises(RequestError, match=r"no model took the mask of using\(mask\)"), using(masks.build("full", 24)):
        model(input_ids=tokens(1, 24), use_cache=False, **arguments)


def call(q=None, given=None, v=None, **arguments):
    """One layer's attention of 2 × 4 heads × 8 tokens."""
    q = torch.randn(2, 4, 8, 16) if q is None else q
    v = torch.randn(2, 4, 8, 16) if v is None else v
    given = LayerMask((masks.build("causal", 8),) * 2) if given is None else given
    return longca_layers.attend(torch.nn.Linear(1, 1), q, torch.randn(2, 4, 8, 16), v, given, **arguments)


def bounds(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cu_seq_lens_q": bounds(0, 20, 24), "cu_seq_lens_k": bounds(0, 10, 24)}, "other bounds than cu_seq_lens_q"),
        ({"cu_seq_lens_k": bounds(0, 20, 24)}, "cu_seq_lens_k without cu_seq_lens_q"),
        ({"cu_seq_lens_q": bounds(0, 15, 19)}, "ends at 19, and the batch has 24 tokens"),
    ],
)
def test_bounds_of_keys_that_differ_are_refused(arguments, words):
    model, batch = make("llama"), {"input_ids": tokens(1, 24)}
    with pytest.raises(RequestError, match=words):
        step(model, batch, "longca", **arguments)
    both = {"cu_seq_lens_q": bounds(0, 20, 24), "cu_seq_lens_k": bounds(0, 20, 24)}
    step(model, batch, "longca", **both)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dropout": 0.1}, UnsupportedError, "Linear has attention dropout 0.1; set attention_dropout=0.0"),
        ({"softcap": -30.0}, RequestError, "softcap"),
        ({"s_aux": torch.zeros(3)}, RequestError, "one number for each query head"),
        ({"output_attentions": True}, UnsupportedError, "Leave output_attentions away"),
        ({"q": torch.randn(2, 4, 8, 16, dtype=torch.bfloat16)}, RequestError, "load the model in one"),
        (
            {"longca_mask": masks.build("causal", 9)},
            RequestError,
            "your 1 masks are of 9 × 9 tokens, and the batch has",
        ),
        ({"longca_mask": [masks.build("causal", 8)] * 3}, RequestError, "your 3 masks"),
        ({"cu_seq_lens_q": torch.tensor([0, 8])}, RequestError, "flatten the batch"),
        ({"sliding_window": 3}, RequestError, "its mask shows keys before it"),
    ],
)
def test_what_a_layer_cannot_compute_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        call(**arguments)


def test_a_layer_without_a_mask_is_refused():
    with pytest.raises(RequestError, match="Linear gives no mask"):
        longca_layers.attend(torch.nn.Linear(1, 1), *torch.randn(3, 1, 2, 8, 16), None)


def test_an_own_mask_takes_the_place_of_bounds():
    model, own = make("llama"), masks.build("causal", 24)
    batch = {"input_ids": tokens(1, 24)}
    plain = step(model, batch, "longca", longca_mask=own)
    assert_same(step(model, batch, "longca", longca_mask=own, cu_seq_lens_q=bounds(0, 20, 24)), plain, 0.0)
