"""`longca recommend --model`: a config.json that transformers writes is read as its layers understand it."""

import importlib

import pytest
import torch
import transformers

from longca_advice.models import find_model

SIZES = {"num_hidden_layers": 12, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 100}
YARN = {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5, "rope_theta": 10000.0}

CONFIGS = {
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"sliding_window": 16},
    "Qwen3": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 5},
    "Gemma2": {"query_pre_attn_scalar": 144},
    "Gemma3": {"num_key_value_heads": 4, "sliding_window": 16},
    "GptOss": {},
    "Cohere2": {},
    "Granite": {"attention_multiplier": 0.25},
    "DeepseekV3": {"rope_scaling": YARN, "num_key_value_heads": 8},
}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_of_transformers_is_read_as_its_layers_understand_it(family, tmp_path):
    name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, name)(**SIZES, **CONFIGS[family])
    config.save_pretrained(tmp_path)
    attention = getattr(
        importlib.import_module(config.__module__.replace("configuration", "modeling")), f"{family}Attention"
    )
    with torch.device("meta"):
        layers = [attention(config, layer_idx=number) for number in range(config.num_hidden_layers)]
    types = getattr(config, "layer_types", None) or ["sliding_attention" if family == "Mistral" else ""] * len(layers)
    expected = []
    for layer, kind in zip(layers, types, strict=True):
        dim = layer.qk_head_dim if family == "DeepseekV3" else layer.head_dim
        window = config.sliding_window if kind == "sliding_attention" else None
        expected.append((dim, getattr(layer, "v_head_dim", dim), window, layer.scaling, hasattr(layer, "sinks")))
    found = find_model(tmp_path)
    told = [
        (
            kind.head_dim,
            kind.head_dim_v or kind.head_dim,
            kind.window,
            kind.softmax_scale or kind.head_dim**-0.5,
            kind.sinks,
        )
        for kind in found.kinds
        for _ in range(kind.count)
    ]
    for one, other in zip(sorted(told, key=str), sorted(expected, key=str), strict=True):
        assert one == pytest.approx(other)
    assert {kind.heads for kind in found.kinds} == {(config.num_attention_heads, config.num_key_value_heads)}
    assert {kind.softcap for kind in found.kinds} == {getattr(config, "attn_logit_softcapping", None)}


def test_the_names_that_are_defaults_of_transformers_have_their_facts(tmp_path):
    defaults = {
        "gpt-oss-120b": "GptOssConfig",
        "mistral-7b-v0.1": "MistralConfig",
        "qwen3-next-80b-a3b": "Qwen3NextConfig",
    }
    for name, config in defaults.items():
        if hasattr(transformers, config):
            getattr(transformers, config)().save_pretrained(tmp_path)
            found, known = find_model(tmp_path), find_model(name)
            assert (found.kinds, found.without_attention) == (known.kinds, known.without_attention)
