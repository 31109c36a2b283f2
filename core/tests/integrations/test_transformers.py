"""Models of transformers compute with LongCA what they compute with eager and sdpa, and lose no mask."""

import ast
import copy
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longca import masks
from longca.errors import LongCAError, RequestError, UnsupportedError
from longca.integrations.transformers import LayerMask, register, using
from longca.integrations.transformers import layers as longca_layers

from .models import BATCHES, COMMON, MODELS, assert_same, make, packed, step, tokens, transformers

#: Where `make install` puts the oldest release of transformers that LongCA takes.
OLDEST = Path(sys.prefix) / "oldest-transformers"


@pytest.fixture(autouse=True)
def _registered():
    register()


@pytest.fixture
def seen(monkeypatch):
    """The masks that layers computed with, layer by layer."""
    found = []
    original = longca_layers.sdpa

    def noted(query, key, value, given, **options):
        found.append(given)
        return original(query, key, value, given, **options)

    monkeypatch.setattr(longca_layers, "sdpa", noted)
    return found


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_sdpa(name, batch):
    model = make(name)
    assert_same(step(model, BATCHES[batch], "longca"), step(model, BATCHES[batch], "sdpa"), 1e-12)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_eager(name, batch, monkeypatch):
    model, softmax = make(name), torch.nn.functional.softmax
    # eager asks for weights in float32, whatever the dtype of the model.
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda scores, dim, dtype=None: softmax(scores, dim))
    assert_same(step(model, BATCHES[batch], "longca"), step(model, BATCHES[batch], "eager"), 1e-12)


def test_documents_of_a_batch_do_not_see_each_other():
    model, batch = make("llama"), packed(9, 6, 4)
    found = step(model, batch, "longca").logits
    parts = [{"input_ids": ids[None]} for ids in batch["input_ids"][0].split([9, 6, 4])]
    alone = torch.cat([step(model, part, "longca").logits for part in parts])
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)


def test_layers_get_slices_and_equal_batches_the_same_objects(seen):
    model = make("gemma")
    step(model, packed(9, 6, 4), "longca")
    step(model, packed(9, 6, 4), "longca")
    sliding, full = seen[0][0], seen[1][0]
    assert full == masks.build("causal_document", 19, documents=[9, 6, 4])
    assert sliding == masks.from_cu_seqlens([0, 9, 15, 19], causal=True, window_size=(4, 0))
    assert all(given[0] is (sliding, full)[at % 2] for at, given in enumerate(seen))


def test_bounds_of_documents_may_come_from_a_collator():
    features = [{"input_ids": tokens(1, 30)[0][:length].tolist()} for length in (9, 6, 4)]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = dict(collator(features))
    batch.pop("labels")
    model = make("qwen")
    found = step(model, batch, "longca")
    assert_same(found, step(model, packed_of(features), "sdpa"), 1e-12)
    batch.pop("position_ids")  # rotary embeddings are those of one sequence, and the bounds are still kept
    once_more = step(model, batch, "longca").logits
    one = step(model, {"input_ids": batch["input_ids"]}, "longca").logits
    torch.testing.assert_close(once_more[:9], found.logits[:9], rtol=0, atol=1e-12)
    assert not torch.allclose(once_more[9:], one[9:])


def packed_of(features):
    """A batch of documents with positions alone."""
    ids = torch.tensor([[token for feature in features for token in feature["input_ids"]]])
    return {"input_ids": ids, "position_ids": packed(9, 6, 4)["position_ids"]}


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_generating_is_that_of_sdpa(name):
    model = make(name).eval()
    words = []
    for implementation in ("longca", "sdpa"):
        model.set_attn_implementation(implementation)
        words.append(model.generate(tokens(2, 9), max_new_tokens=7, do_sample=False, attention_mask=torch.ones(2, 9)))
    assert torch.equal(*words)


def test_a_users_mask_takes_the_place_of_the_models_and_windows_stay(seen):
    prefix = masks.build("prefix_lm_causal", 24, prefix=10)
    model, batch = make("gemma"), {"input_ids": tokens(1, 24)}
    with using(prefix):
        within = step(model, batch, "longca")
    assert seen[1][0] is prefix
    assert seen[0][0] == prefix & band(24, 5)
    assert_same(step(model, batch, "longca", longca_mask=prefix), within, 1e-12)


def band(tokens, window):
    """The pairs whose key is less than a window before the query."""
    return masks.SliceMask([masks.Slice(0, tokens, 0, tokens, 1 - window)], tokens, tokens)


def test_a_tensor_of_four_dims_is_read_once(monkeypatch):
    prefix = masks.build("prefix_lm_causal", 24, prefix=10)
    model, batch = make("llama"), {"input_ids": tokens(2, 24)}
    read = []
    original = longca_layers.from_dense
    monkeypatch.setattr(longca_layers, "from_dense", lambda matrix: read.append(matrix) or original(matrix))
    dense = torch.from_numpy(prefix.dense())[None, None].expand(2, 1, -1, -1)
    scores = torch.zeros(2, 1, 24, 24, dtype=torch.float64).masked_fill(~dense, torch.finfo(torch.float64).min)

    def computed(tensor, implementation):
        return step_of(model, batch["input_ids"], tensor, implementation)

    torch.testing.assert_close(computed(dense, "longca"), computed(dense, "sdpa"), rtol=0, atol=1e-12)
    assert len(read) == 2  # of two rows, by the first of two layers
    torch.testing.assert_close(computed(scores, "longca"), computed(dense, "sdpa"), rtol=0, atol=1e-12)
    with pytest.raises(LongCAError, match="biases other than 0"):
        computed(scores * 1e-310 - 1.0, "longca")


def test_a_tensor_of_four_dims_that_changed_in_place_is_read_again():
    model, ids = make("llama"), tokens(1, 24)
    matrix = masks.build("causal", 24).dense()[None, None]
    tensor = torch.from_numpy(matrix)
    step_of(model, ids, tensor, "longca")
    matrix[..., 20:, :20] = False  # the tensor's version stays
    found = step_of(model, ids, tensor, "longca")
    torch.testing.assert_close(found, step_of(model, ids, tensor, "sdpa"), rtol=0, atol=1e-12)


def step_of(model, ids, attention_mask, implementation):
    model.set_attn_implementation(implementation)
    return model(input_ids=ids, attention_mask=attention_mask, use_cache=False).logits.detach()


def test_checkpoints_recompute_with_the_same_mask():
    model, batch = make("gemma"), packed(9, 6, 4)
    prefix = masks.build("prefix_lm_document", 19, documents=[9, 6, 4], prefix=3)
    with using(prefix):
        wanted = step(model, batch, "longca")
    checkpoint = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    checkpoint({"use_reentrant": False})
    model.set_attn_implementation("longca")
    model.zero_grad(set_to_none=True)
    with using(prefix):
        logits = model(**batch, use_cache=False).logits[0]
    torch.nn.functional.cross_entropy(logits, batch["input_ids"][0]).backward()  # outside of `using`
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted.gradients[name], rtol=0, atol=1e-12)


def test_trainer_learns_alike_with_longca_and_sdpa(tmp_path):
    features = [{"input_ids": tokens(1, 40)[0][start : start + 5 + start].tolist()} for start in range(1, 17)]

    def losses(implementation):
        model = make("llama", torch.float32)
        model.config.use_cache = False  # `Trainer` of transformers 4 makes caches, which hide documents from masks
        model.set_attn_implementation(implementation)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=20,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        collator = transformers.DataCollatorWithFlattening()
        trainer = transformers.Trainer(model, arguments, data_collator=collator, train_dataset=features)
        trainer.train()
        return [each["loss"] for each in trainer.state.log_history if "loss" in each]

    mine, theirs = losses("longca"), losses("sdpa")
    assert len(mine) == 20
    assert mine[-1] < mine[0]
    assert mine == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_step_under_autocast_errs_as_that_of_sdpa(name):
    def taken(implementation, is_cast):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            found = step(make(name, torch.float32), BATCHES["packed"], implementation)
        assert found.logits.dtype == (torch.bfloat16 if is_cast else torch.float32)
        return {"logits": found.logits.float(), **found.gradients}

    mine, theirs, exact = taken("longca", True), taken("sdpa", True), taken("sdpa", False)
    for part, values in exact.items():
        error, allowed = ((each[part] - values).abs().max().item() for each in (mine, theirs))
        assert error <= 3 * allowed, part


@pytest.mark.parametrize(("dtype", "computed"), [(torch.float32, torch.bfloat16), (torch.float64, torch.float64)])
def test_autocast_leaves_float64_as_it_is(dtype, computed):
    assert longca_layers.computing_dtype(dtype, "cpu") == dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert longca_layers.computing_dtype(dtype, "cpu") == computed
        assert longca_layers.under_autocast(torch.zeros(1, dtype=dtype))[0].dtype == computed


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
    "Mpt": {"d_model": 32, "n_layers": 1, "n_heads": 4},
    "XGLM": {"d_model": 32, "num_layers": 1, "attention_heads": 4, "ffn_dim": 48},
    "CodeGen": {"n_embd": 32, "n_layer": 1, "n_head": 4, "rotary_dim": 4},
}


@pytest.mark.skipif(transformers.__version__.startswith("4."), reason="transformers 4 asks for no mask of Bloom")
@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_a_model_with_an_attention_of_its_own_is_refused(name):
    config = getattr(transformers, f"{name}Config")(vocab_size=61, **OF_THEIR_OWN[name])
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="longca")
    with pytest.raises(UnsupportedError, match="does not take its attention from AttentionInterface"):
        model(input_ids=tokens(1, 24), use_cache=False)


LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "n_routed_experts": 2, "n_group": 1, "topk_group": 1}
#: Models whose attention LongCA cannot compute: their sizes, and what is said of them.
BEYOND = {
    "GptOss": ({"head_dim": 8, **EXPERTS}, "attention sinks"),
    "Gemma2": ({"head_dim": 8}, "caps of scores"),
    "DeepseekV3": ({**LATENT, **EXPERTS, "moe_intermediate_size": 8}, "multi-head latent attention"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_model_whose_attention_is_another_is_refused(name):
    sizes, words = BEYOND[name]
    config = getattr(transformers, f"{name}Config")(**{**COMMON, "num_hidden_layers": 1, **sizes})
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, attn_implementation="longca")
    with pytest.raises(UnsupportedError, match=words):
        model(input_ids=tokens(1, 24), use_cache=False)


#: What models give their layers, and does not change the result. A mask says what is causal.
HARMLESS = {"is_causal", "position_ids", "max_length_q", "max_length_k", "deterministic"}


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


def test_longca_is_refused_until_it_is_registered():
    code = (
        "import transformers as t\n"
        "config = t.LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=61)\n"
        "t.LlamaForCausalLM._from_config(config, attn_implementation='longca')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert 'Specified `attn_implementation="longca"` is not supported' in ran.stderr


def test_a_layer_mask_can_be_copied_and_asked_for_what_it_lacks():
    given = LayerMask((masks.build("causal", 8),))
    assert copy.deepcopy(given) == pickle.loads(pickle.dumps(given)) == given
    assert not hasattr(given, "to")


@pytest.mark.parametrize("mask", ["causal", [], 3])
def test_a_mask_that_is_none_is_refused(mask):
    with pytest.raises(RequestError, match=r"give a mask of longca.masks"), using(mask):
        pass
    with pytest.raises(RequestError, match=r"give a mask of longca.masks"):
        step(make("llama"), BATCHES["plain"], "longca", longca_mask=mask)


def test_a_kernel_by_name_is_that_kernel():
    register("longca_nobody", kernel="nobody")
    with pytest.raises(LongCAError, match="unknown kernel 'nobody'"):
        step(make("llama"), BATCHES["plain"], "longca_nobody")
    register("longca_naive", kernel="naive")
    model = make("llama")
    assert_same(step(model, BATCHES["plain"], "longca_naive"), step(model, BATCHES["plain"], "sdpa"), 1e-12)


def call(q=None, given=None, v=None, **arguments):
    """One layer's attention of 2 × 4 heads × 8 tokens."""
    q = torch.randn(2, 4, 8, 16) if q is None else q
    v = torch.randn(2, 4, 8, 16) if v is None else v
    given = LayerMask((masks.build("causal", 8),) * 2) if given is None else given
    return longca_layers.attend(torch.nn.Linear(1, 1), q, torch.randn(2, 4, 8, 16), v, given, **arguments)


@pytest.mark.parametrize("name", MODELS)
def test_inference_mode_computes_the_same(name):
    model = make(name).eval()
    dense = torch.from_numpy(masks.build("causal", 24).dense())[None, None]
    model.set_attn_implementation("longca")
    given = ({}, {"use_cache": False}, {"attention_mask": BATCHES["left"]["attention_mask"]})
    for arguments in (*given, {"attention_mask": dense}) if name == "llama" else given:
        with torch.inference_mode():
            found = model(input_ids=tokens(2, 24), **arguments).logits
        torch.testing.assert_close(found, model(input_ids=tokens(2, 24), **arguments).logits, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own
def test_a_compiled_model_breaks_a_few_times_a_layer_and_masks_compile_nothing_again():
    torch._dynamo.reset()
    model, ran = make("gemma").eval(), []

    def counting(graph, _inputs):
        return lambda *given: ran.append(graph) or graph(*given)

    model.set_attn_implementation("longca")
    compiled = torch.compile(model, backend=counting)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=False, fail_on_recompile_limit_hit=True):
        for lengths in ((9, 6, 4), (3, 16), (19,), (8, 11), (2, 17)):
            ran.clear()
            found = compiled(**packed(*lengths), use_cache=False).logits
            assert torch.equal(found, model(**packed(*lengths), use_cache=False).logits)
    assert len(ran) <= 6 * len(model.model.layers)


def bounds(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cu_seq_lens_q": bounds(0, 20, 24), "cu_seq_lens_k": bounds(0, 10, 24)}, "other bounds than cu_seq_lens_q"),
        ({"cu_seq_lens_k": bounds(0, 20, 24)}, "cu_seq_lens_k without cu_seq_lens_q"),
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
        ({"softcap": 30.0}, UnsupportedError, "softcap, and LongCA computes no caps of scores"),
        ({"s_aux": torch.zeros(4)}, UnsupportedError, "attention sinks"),
        ({"block_indices": torch.zeros(1)}, UnsupportedError, "blocks of keys that the model chooses"),
        ({"position_bias": torch.zeros(1)}, UnsupportedError, "biases of scores"),
        ({"output_attentions": True}, UnsupportedError, "Leave output_attentions away"),
        ({"q": torch.randn(2, 4, 8, 16, dtype=torch.bfloat16)}, RequestError, "load the model in one"),
        (
            {"v": torch.randn(2, 4, 8, 12)},
            UnsupportedError,
            "Linear has heads of 16 numbers for queries, 16 for keys and 12",
        ),
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


def test_harmless_arguments_of_transformers_are_taken():
    out, weights = call(softcap=None, output_attentions=False, is_causal=True, use_cache=False, sliding_window=8)
    assert (out.shape, weights) == ((2, 8, 4, 16), None)


@pytest.mark.slow
@pytest.mark.skipif(not OLDEST.is_dir(), reason="`make install` puts the oldest release of transformers there")
@pytest.mark.skipif("LONGCA_OLDEST" in os.environ, reason="this is the run with the oldest release")
def test_the_oldest_release_of_transformers():
    apart = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**apart, "PYTHONPATH": str(OLDEST), "LONGCA_OLDEST": "1"}
    here = Path(__file__).parent
    files = [
        str(here / f"test_{name}.py") for name in ("transformers", "boundaries", "mask_functions", "context_parallel")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *files]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=here.parents[2])
    assert ran.returncode == 0, ran.stdout[-6000:]
