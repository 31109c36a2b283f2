"""Tiny models of transformers, their batches, and one training step of them."""

from typing import NamedTuple

import torch
import transformers

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2


def llama():
    """Causal in all layers."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON, num_hidden_layers=2))


def mistral():
    """A sliding window in all layers."""
    return transformers.MistralForCausalLM(transformers.MistralConfig(**COMMON, num_hidden_layers=2, sliding_window=7))


def qwen():
    """A sliding window from the second layer on."""
    config = transformers.Qwen2Config(
        **COMMON, num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=1
    )
    return transformers.Qwen2ForCausalLM(config)


def gemma(layer_types=ALTERNATING):
    """Sliding windows and full attention in turn, with heads of another size and another scale."""
    config = transformers.Gemma3TextConfig(
        **COMMON, num_hidden_layers=4, head_dim=16, sliding_window=5, layer_types=layer_types, query_pre_attn_scalar=9
    )
    return transformers.Gemma3ForCausalLM(config)


def stablelm():
    """It keeps arguments of the call from its layers."""
    return transformers.StableLmForCausalLM(transformers.StableLmConfig(**COMMON, num_hidden_layers=2))


def jetmoe():
    """Experts of attention: layers repeat their KV heads for the experts of a token."""
    sizes = {name: size for name, size in COMMON.items() if name != "num_attention_heads"}
    config = transformers.JetMoeConfig(**sizes, num_hidden_layers=2, kv_channels=8, num_local_experts=4)
    return transformers.JetMoeForCausalLM(config)


def gpt_oss():
    """Sinks, and sliding windows and full attention in turn."""
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}
    config = transformers.GptOssConfig(**COMMON, **experts, num_hidden_layers=2, head_dim=8, sliding_window=5)
    return transformers.GptOssForCausalLM(config)


def gemma2():
    """Caps of scores, and sliding windows and full attention in turn."""
    config = transformers.Gemma2Config(
        **COMMON,
        num_hidden_layers=2,
        head_dim=16,
        sliding_window=5,
        query_pre_attn_scalar=9,
        attn_logit_softcapping=0.3,
    )
    return transformers.Gemma2ForCausalLM(config)


def deepseek():
    """Latent attention: values are narrower than keys, and YaRN scales the scores."""
    sizes = {name: size for name, size in COMMON.items() if name != "num_key_value_heads"}
    latent = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    yarn = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_theta": 1e4}
    config = transformers.DeepseekV3Config(
        **sizes,
        **latent,
        **experts,
        num_key_value_heads=4,
        num_hidden_layers=2,
        moe_intermediate_size=8,
        first_k_dense_replace=1,
        rope_parameters={**yarn, "original_max_position_embeddings": 64},
        experts_implementation="eager",
    )
    return transformers.DeepseekV3ForCausalLM(config)


def qwen_next():
    """Layers of linear attention between those of full attention, whose outputs are gated."""
    config = transformers.Qwen3NextConfig(
        **COMMON,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
        experts_implementation="eager",
    )
    return transformers.Qwen3NextForCausalLM(config)


MODELS = {"llama": llama, "mistral": mistral, "qwen": qwen, "gemma": gemma, "jetmoe": jetmoe}

#: Models whose attention PyTorch's own does not compute, or between whose layers are others.
FAMILIES = {"gpt_oss": gpt_oss, "gemma2": gemma2, "deepseek": deepseek, "qwen_next": qwen_next}
if not hasattr(transformers, "Qwen3NextConfig"):  # before 4.57
    del FAMILIES["qwen_next"]


def make(name, dtype=torch.float64, **options):
    """A model with the same random weights every time, in training mode."""
    torch.manual_seed(5)
    return {**MODELS, **FAMILIES, "stablelm": stablelm}[name](**options).to(dtype).train()


def tokens(rows, length):
    """Token ids [rows, length], none of which is the padding's."""
    return torch.randint(1, 61, (rows, length), generator=torch.Generator().manual_seed(7))


def padded(side):
    """Two rows of 24 tokens, of which the second has six tokens of padding on a side."""
    attention_mask = torch.ones(2, 24, dtype=torch.long)
    attention_mask[1, slice(0, 6) if side == "left" else slice(18, 24)] = 0
    return {"input_ids": tokens(2, 24), "attention_mask": attention_mask}


def packed(*lengths):
    """One row of documents, as a collator that flattens gives it."""
    position_ids = torch.cat([torch.arange(length) for length in lengths])[None]
    return {"input_ids": tokens(1, sum(lengths)), "position_ids": position_ids}


BATCHES = {
    "plain": {"input_ids": tokens(2, 24)},
    "packed": packed(5, 1, 11, 7),
    "right": padded("right"),
    "left": padded("left"),
}


class Step(NamedTuple):
    """What a training step computes.

    Attributes:
        logits: Logits of tokens that are no padding.
        gradients: Gradients of all parameters, by their names.
    """

    logits: torch.Tensor
    gradients: dict


def step(model, batch, implementation, **arguments):
    """A forward and a backward of the tokens that are no padding."""
    model.set_attn_implementation(implementation)
    model.zero_grad(set_to_none=True)
    ids = batch["input_ids"]
    real = batch.get("attention_mask", torch.ones_like(ids)).bool()
    logits = model(**batch, use_cache=False, **arguments).logits[real]
    torch.nn.functional.cross_entropy(logits, ids[real]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return Step(logits.detach(), gradients)


def assert_same(found, wanted, most):
    """Both steps agree up to a difference relative to the largest value."""
    torch.testing.assert_close(found.logits, wanted.logits, rtol=0, atol=most * wanted.logits.abs().max().item())
    assert found.gradients.keys() == wanted.gradients.keys()
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(
            found.gradients[name], gradient, rtol=0, atol=most * gradient.abs().max().item(), msg=name
        )
