"""Calls and models that `context_parallel` refuses. Every rank refuses them, and goes on."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from models import make, packed, padded, tokens, transformers
from sharded_steps import line
from torch.distributed.device_mesh import init_device_mesh

from longca.errors import LongCAError
from longca_transformers import context_parallel

OLD = transformers.__version__.startswith("4.")


def refused(words, call):
    """Every rank refuses a call in these words, and goes on."""
    with pytest.raises(LongCAError) as caught:
        call()
    assert words in str(caught.value)


def check_bad_input():
    mesh = line(dist.get_world_size())
    model, ids = make("llama"), tokens(2, 24)
    size = dist.get_world_size()
    refused("before DDP wraps it", lambda: context_parallel(torch.nn.Linear(1, 1), mesh))
    refused("runs on a device mesh", lambda: context_parallel(model, size))
    refused("unknown strategy", lambda: context_parallel(model, mesh, "nobody"))
    refused("unknown kernel", lambda: context_parallel(model, mesh, kernel="nobody"))
    refused(
        "the mesh is",
        lambda: context_parallel(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")), "usp"),
    )
    assert model.config._attn_implementation != "longca_context_parallel"
    cp = context_parallel(model, mesh, "ring_p2p")
    refused("under context_parallel already", lambda: context_parallel(model, mesh))
    refused("was not called yet", lambda: cp.shard(ids))
    refused("use_cache", lambda: model(input_ids=ids, use_cache=True))
    for name in ("past_key_values", "cache"):  # by release
        refused(f"gives {name}", lambda name=name: model(input_ids=ids, **{name: transformers.DynamicCache()}))
    refused("logits_to_keep", lambda: model(input_ids=ids, logits_to_keep=1))
    refused("the tensor pixel_values", lambda: model(input_ids=ids, pixel_values=torch.zeros(1)))
    refused("give input_ids or inputs_embeds", lambda: model(labels=ids))
    refused(f"the batch has {size - 1} tokens, and the mesh {size} ranks", lambda: model(input_ids=ids[:1, : size - 1]))
    refused("begins with padding", lambda: model(**padded("left")))
    refused("ignores these documents", lambda: model(**packed(5, 7), attention_mask=torch.ones(1, 12)))
    refused("labels has the shape [2, 23]", lambda: model(input_ids=ids, labels=ids[:, 1:]))
    refused("flatten the batch", lambda: model(input_ids=ids, cu_seq_lens_q=torch.tensor([0, 24])))
    one, of_queries = ids[:1], torch.tensor([0, 20, 24])
    refused("cu_seq_lens_k without cu_seq_lens_q", lambda: model(input_ids=one, cu_seq_lens_k=of_queries))
    other = {"cu_seq_lens_q": of_queries, "cu_seq_lens_k": torch.tensor([0, 10, 24])}
    refused("other bounds than cu_seq_lens_q", lambda: model(input_ids=one, **other))
    short = {"cu_seq_lens_q": of_queries[:2], "cu_seq_lens_k": of_queries[:2]}
    refused("ends at 20, and the batch has 24 tokens", lambda: model(input_ids=one, **short))
    refused("LongCA reads documents by this name", lambda: model(input_ids=one, seq_lens=[20, 4]))
    refused("as [1, 23]", lambda: model(input_ids=one, seq_idx=torch.zeros(1, 23)))
    numbered = (torch.arange(24) >= 20).long()[None] + 1
    refused("ignores these documents", lambda: model(**packed(5, 19), attention_mask=numbered))
    refused("different batches", lambda: model(input_ids=ids + dist.get_rank()))
    refused("was called by itself", lambda: model.model(input_ids=ids, use_cache=False))
    refused("[rows, tokens, ...] of the whole batch", lambda: (model(input_ids=ids), cp.shard(ids[:1])))
    cp.remove()
    needs = context_parallel(model, mesh, "ring_p2p", require_documents=True)
    refused("no boundaries of documents", lambda: model(input_ids=ids[:1]))
    model(**packed(5, 7))
    model(input_ids=ids[:1], cu_seq_lens_q=torch.tensor([0, 20, 24]))
    needs.remove()
    averaged = context_parallel(model, mesh, "ring_p2p", averaged=True)
    refused("leave sync_gradients away", averaged.sync_gradients)


def check_kinds_of_layers():
    """A model asks for masks of kinds that none of its layers has. A layer of such a kind is refused."""
    mesh, ids = line(dist.get_world_size()), tokens(1, 24)
    model = make("gemma", layer_types=["sliding_attention"] * 4)
    wanted = model(input_ids=ids, use_cache=False).logits
    cp = context_parallel(model, mesh, "ring_p2p")
    torch.testing.assert_close(model(input_ids=ids).logits, cp.shard(wanted), rtol=0, atol=1e-5)
    cp.remove()
    model.config.layer_types = ["full_attention"] * 4
    cp = context_parallel(model, mesh, "ring_p2p")
    model.config.layer_types = ["sliding_attention"] * 4
    refused("set layer_types and sliding_window of the configuration", lambda: model(input_ids=ids))
    cp.remove()


def check_models_that_share_a_configuration():
    """Each gets its attention back in any order, and none is computed by another attention meanwhile."""
    mesh, ids = line(dist.get_world_size()), tokens(1, 24)
    for first in (0, 1):
        config = make("llama").config
        config._attn_implementation = "sdpa"
        models = [transformers.LlamaForCausalLM(config).double() for _ in range(2)]
        wanted = [model(input_ids=ids, use_cache=False).logits for model in models]
        both = [context_parallel(model, mesh, "ring_p2p") for model in models]
        both[first].remove()
        refused("a model that shares its configuration", partial(models[first], input_ids=ids, use_cache=False))
        kept = models[1 - first](input_ids=ids).logits
        torch.testing.assert_close(kept, both[1 - first].shard(wanted[1 - first]), rtol=0, atol=1e-11)
        both[1 - first].remove()
        assert config._attn_implementation == "sdpa"
        for model, logits in zip(models, wanted, strict=True):
            assert torch.equal(model(input_ids=ids, use_cache=False).logits, logits)


def check_another_attention_under_context_parallel():
    model, ids = make("llama"), tokens(1, 24)
    cp = context_parallel(model, line(dist.get_world_size()), "ring_p2p")
    model.set_attn_implementation("sdpa")
    refused("was changed to 'sdpa' under context_parallel", lambda: model(input_ids=ids))
    model.set_attn_implementation("longca_context_parallel")
    model(input_ids=ids)
    cp.remove()


def check_models_that_ranks_cannot_compute():
    mesh, sizes = line(dist.get_world_size()), {"hidden_size": 24, "intermediate_size": 24, "vocab_size": 11}

    def of(**others):
        heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 2}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **heads, **others}))

    refused("heads", lambda: context_parallel(of(), mesh, "ulysses"))
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    key = "rope_scaling" if OLD else "rope_parameters"
    refused("longest position", lambda: context_parallel(of(**{key: scaled}), mesh))
    refused("attention_dropout", lambda: context_parallel(of(attention_dropout=0.1), mesh))
    refused("linear_attention", lambda: context_parallel(of(layer_types=["full_attention", "linear_attention"]), mesh))
    if not OLD:
        unlike = transformers.Gemma4TextConfig(
            **sizes, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=6, head_dim=8, global_head_dim=16,
            hidden_size_per_layer_input=0, vocab_size_per_layer_input=11,
        )  # fmt: skip
        refused(
            "differ in their heads or head dims", lambda: context_parallel(transformers.Gemma4ForCausalLM(unlike), mesh)
        )
    heads = {"decoder_layers": 1, "decoder_attention_heads": 4}
    bart = transformers.BartForCausalLM(transformers.BartConfig(d_model=32, vocab_size=61, **heads))
    refused("takes no position_ids, so", lambda: context_parallel(bart, mesh))
    of_roberta = {**sizes, "num_attention_heads": 4, "num_hidden_layers": 1, "is_decoder": True}
    roberta = transformers.RobertaForCausalLM(transformers.RobertaConfig(**of_roberta))
    reason = "AttentionInterface" if OLD else "counts positions from its padding token"
    refused(reason, lambda: context_parallel(roberta, mesh))
    if not OLD:
        doge = transformers.DogeConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
        refused("keep_window_size", lambda: context_parallel(transformers.DogeForCausalLM(doge), mesh))
    own = of()
    own.loss_function = lambda **_: None
    refused("a loss of its own", lambda: context_parallel(own, mesh))
    chosen = of(layer_types=["full_attention"] * 2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    cp = context_parallel(chosen, mesh, "ring_p2p")
    chosen.config.is_causal = False
    if not OLD:
        refused("bidirectional_mask_function", lambda: chosen(input_ids=tokens(1, 24) % 11))
    cp.remove()
