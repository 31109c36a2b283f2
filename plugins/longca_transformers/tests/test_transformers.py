"""Models of transformers compute with LongCA what they compute with eager and sdpa, and lose no mask."""

import os
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from longca import masks
from longca.errors import LongCAError
from longca.kernels.operators import ATTENTION_OPERATORS
from longca_transformers import layer_masks as longca_layer_masks
from longca_transformers import layers as longca_layers
from longca_transformers import register, using

from .models import BATCHES, FAMILIES, MODELS, assert_same, make, packed, step, tokens, transformers

pytestmark = pytest.mark.usefixtures("registered")

SELECTIVE = partial(create_selective_checkpoint_contexts, ATTENTION_OPERATORS)
#: Where `make test-all` puts the oldest release of transformers that LongCA takes.
OLDEST = Path(sys.prefix) / "oldest-transformers"


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


@pytest.mark.parametrize(
    ("name", "batch"),
    # gpt-oss makes masks without positions
    [(name, batch) for name in (*MODELS, *FAMILIES) for batch in BATCHES if (name, batch) != ("gpt_oss", "packed")],
)
def test_a_step_is_that_of_eager(name, batch, monkeypatch):
    model, softmax = make(name), torch.nn.functional.softmax
    # eager of most models asks for weights in float32, which differ by 1e-7, whatever the dtype of the model.
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


@pytest.mark.parametrize(
    ("name", "other"), [("llama", "sdpa"), ("gemma", "sdpa"), *((name, "eager") for name in FAMILIES)]
)
def test_generating_is_that_of_another_attention(name, other):
    model = make(name).eval()
    words = []
    for implementation in ("longca", other):
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


def test_windows_of_layers_count_the_tokens_of_a_trees_path():
    model, ids = make("gemma"), tokens(1, 20)
    tree = masks.tree([-1, 0, 1, 1, 0], [5, 3, 2, 4, 6])  # paths are longer than the window of 5
    positions = torch.from_numpy(tree.visible_keys() - 1)
    with using(tree):
        found = step(model, {"input_ids": ids, "position_ids": positions}, "longca").logits
    for path in ([*range(10)], [*range(8), *range(10, 14)], [*range(5), *range(14, 20)]):
        alone = step(model, {"input_ids": ids[:, path]}, "longca").logits
        torch.testing.assert_close(found[path], alone, rtol=0, atol=1e-6)  # rotary embeddings are in float32


def band(tokens, window):
    """The pairs whose key is less than a window before the query."""
    return masks.SliceMask([masks.Slice(0, tokens, 0, tokens, 1 - window)], tokens, tokens)


def test_a_tensor_of_four_dims_is_read_once(monkeypatch):
    prefix = masks.build("prefix_lm_causal", 24, prefix=10)
    model, batch = make("llama"), {"input_ids": tokens(2, 24)}
    read = []
    original = longca_layer_masks.from_dense
    monkeypatch.setattr(longca_layer_masks, "from_dense", lambda matrix: read.append(matrix) or original(matrix))
    dense = torch.from_numpy(prefix.dense())[None, None].expand(2, 1, -1, -1)
    scores = torch.zeros(2, 1, 24, 24, dtype=torch.float64).masked_fill(~dense, torch.finfo(torch.float64).min)

    def computed(tensor, implementation):
        return step_of(model, batch["input_ids"], tensor, implementation)

    torch.testing.assert_close(computed(dense, "longca"), computed(dense, "sdpa"), rtol=0, atol=1e-12)
    assert len(read) == 2  # of two rows, by the first of two layers
    torch.testing.assert_close(computed(scores, "longca"), computed(dense, "sdpa"), rtol=0, atol=1e-12)
    with pytest.raises(LongCAError, match="biases other than 0"):
        computed(scores * 1e-310 - 1.0, "longca")


def step_of(model, ids, attention_mask, implementation):
    model.set_attn_implementation(implementation)
    return model(input_ids=ids, attention_mask=attention_mask, use_cache=False).logits.detach()


@pytest.mark.parametrize("options", [{}, {"context_fn": SELECTIVE}], ids=["all", "selective"])
@pytest.mark.parametrize("name", ["gemma", "gpt_oss"])  # gpt-oss makes masks without positions, so layers read them
def test_checkpoints_recompute_with_the_same_mask(name, options):
    model, lengths = make(name), (9, 6, 4) if name == "gemma" else (19,)
    prefix = masks.build("prefix_lm_document", 19, documents=[9, 6, 4], prefix=3)
    given = partial(using, prefix) if name == "gemma" else nullcontext
    with given():
        wanted = step(model, packed(*lengths), "longca")
    checkpoint = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    checkpoint({"use_reentrant": False, **options})
    model.set_attn_implementation("longca")
    model.zero_grad(set_to_none=True)
    batch = packed(*lengths)  # tensors that nothing is known of
    with given():
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


def test_a_kernel_by_name_is_that_kernel():
    with pytest.raises(LongCAError, match="unknown kernel 'nobody'"):
        register("longca_nobody", kernel="nobody")
    register("longca_naive", kernel="naive")
    model = make("llama")
    assert_same(step(model, BATCHES["plain"], "longca_naive"), step(model, BATCHES["plain"], "sdpa"), 1e-12)


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
    model, ran = make("mistral").eval(), []

    def counting(graph, _inputs):
        return lambda *given: ran.append(graph) or graph(*given)

    model.set_attn_implementation("longca")
    compiled = torch.compile(model, backend=counting)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=False, fail_on_recompile_limit_hit=True):
        for lengths in ((9, 6, 4), (3, 16), (19,), (8, 11), (2, 17)):
            ran.clear()
            found = compiled(**packed(*lengths), use_cache=False).logits
            assert torch.equal(found, model(**packed(*lengths), use_cache=False).logits)
    assert len(ran) <= 6 * len(model.model.layers) + 2


@pytest.mark.slow
@pytest.mark.skipif(not OLDEST.is_dir(), reason="`make test-all` installs the oldest release of transformers there")
@pytest.mark.exhaustive
@pytest.mark.skipif("LONGCA_OLDEST" in os.environ, reason="this is the run with the oldest release")
def test_the_oldest_release_of_transformers():
    apart = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**apart, "PYTHONPATH": str(OLDEST), "LONGCA_OLDEST": "1"}
    here = Path(__file__).parent
    files = [
        str(here / f"test_{name}.py")
        for name in ("transformers", "refused_layers", "boundaries", "documents", "mask_functions", "context_parallel")
    ]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not exhaustive"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=here.parents[2])
    assert ran.returncode == 0, ran.stdout[-6000:]
