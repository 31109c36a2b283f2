"""models: a name or a config.json becomes kinds of layers, and a model's answer is that of its layers."""

import json
import math

import pytest

from longca import masks, recommend, recommend_model
from longca.errors import RequestError, UnknownNameError
from longca_advice.models import LayerKind, find_model, known_models

HEADS = {"num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64}
MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_attention_heads": 16}
YARN = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}

#: Files of users, each with the layers that transformers makes of it: count, heads, head_dim, and what else they have.
FILES = {
    "llama": ({**HEADS, "model_type": "llama", "head_dim": None, "hidden_size": 2048}, [(12, (16, 4), 128, {})]),
    "no-groups": ({**HEADS, "model_type": "phi", "num_key_value_heads": None}, [(12, (16, 16), 64, {})]),
    "mistral": ({**HEADS, "model_type": "mistral", "sliding_window": 100}, [(12, (16, 4), 64, {"window": 100})]),
    "qwen": ({**HEADS, "model_type": "qwen2", "sliding_window": 100}, [(12, (16, 4), 64, {})]),
    "qwen-window": (
        {**HEADS, "model_type": "qwen3", "sliding_window": 100, "use_sliding_window": True, "max_window_layers": 5},
        [(5, (16, 4), 64, {}), (7, (16, 4), 64, {"window": 100})],
    ),
    "gpt-oss": (
        {**HEADS, "model_type": "gpt_oss", "sliding_window": 128},
        [(6, (16, 4), 64, {"window": 128, "sinks": True}), (6, (16, 4), 64, {"sinks": True})],
    ),
    "gemma2": (
        {**HEADS, "model_type": "gemma2", "head_dim": 128, "query_pre_attn_scalar": 144},
        [
            (6, (16, 4), 128, {"window": 4096, "softcap": 50.0, "softmax_scale": 1 / 12}),
            (6, (16, 4), 128, {"softcap": 50.0, "softmax_scale": 1 / 12}),
        ],
    ),
    "gemma3": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34}},
        [(29, (8, 4), 256, {"window": 4096}), (5, (8, 4), 256, {})],
    ),
    "listed": (
        {**HEADS, "sliding_window": 8, "layer_types": ["sliding_attention", *["full_attention"] * 10, "conv"]},
        [(1, (16, 4), 64, {"window": 8}), (10, (16, 4), 64, {})],
    ),
    "qwen-next": ({**HEADS, "model_type": "qwen3_next"}, [(3, (16, 4), 64, {})]),
    "deepseek": (
        {**HEADS, **MLA, "model_type": "deepseek_v3", "rope_scaling": YARN},
        [(12, (16, 16), 192, {"head_dim_v": 128, "softmax_scale": (1 + 0.1 * math.log(40)) ** 2 / math.sqrt(192)})],
    ),
    "deepseek-plain": ({**HEADS, **MLA}, [(12, (16, 16), 192, {"head_dim_v": 128})]),
}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    def write(config):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config), "utf-8")
        return path

    return write


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_what_its_layers_ask_of_attention(file, name):
    config, layers = FILES[name]
    path = file(config)
    found = find_model(path)
    assert found == find_model(path.parent)
    for kind, (count, heads, dim, more) in zip(found.kinds, layers, strict=True):
        scale = kind.softmax_scale
        assert scale == pytest.approx(more.get("softmax_scale")) if "softmax_scale" in more else scale is None
        assert kind == LayerKind(count, heads, dim, **{**more, "softmax_scale": scale})
    layers_told = config.get("num_hidden_layers") or 34
    assert sum(kind.count for kind in found.kinds) + found.without_attention == layers_told


def test_known_models_have_the_layers_that_were_published():
    """Layers, of these with a window, heads, dims: from the reports of the models."""
    said = {
        "gpt-oss-20b": (24, 12, (64, 8), (64, None)),
        "openai/gpt-oss-120b": (36, 18, (64, 8), (64, None)),
        "Llama-3.1-405B": (126, 0, (128, 8), (128, None)),
        "Qwen/Qwen3-235B-A22B": (94, 0, (64, 4), (128, None)),
        "google/gemma-3-27b-it": (62, 52, (32, 16), (128, None)),
        "gemma-2-9b": (42, 21, (16, 8), (256, None)),
        "mistral-7b-v0.1": (32, 32, (32, 8), (128, None)),
        "deepseek-v3": (61, 0, (128, 128), (192, 128)),
        "kimi-k2": (61, 0, (64, 64), (192, 128)),
        "qwen3-next-80b-a3b": (12, 0, (16, 2), (256, None)),
        "glm-4.5": (92, 0, (96, 8), (128, None)),
    }
    for name, (layers, within, heads, dims) in said.items():
        kinds = find_model(name).kinds
        assert sum(kind.count for kind in kinds) == layers, name
        assert sum(kind.count for kind in kinds if kind.window is not None) == within, name
        assert {(kind.heads, (kind.head_dim, kind.head_dim_v)) for kind in kinds} == {(heads, dims)}, name
    assert all(find_model(name).kinds for name in known_models())


def test_a_window_narrows_the_documents_of_the_question():
    mask = masks.build("causal_document", 300, documents=[200, 100])
    kind = LayerKind(1, (8, 8), 64, window=32)
    tokens = range(300)
    expected = [[j <= i < j + 32 and (i < 200) == (j < 200) for j in tokens] for i in tokens]
    assert (kind.mask(mask).dense() == expected).all()
    assert LayerKind(1, (8, 8), 64, window=200).mask(mask) is mask
    with pytest.raises(RequestError, match="--mask-heads 1"):
        kind.mask(masks.sample("uniform_block_sparse", 512, block=64, kept=0.2, heads=8))
    assert "sliding_window" not in mask.factors


def ask(mask, model, **options):
    return recommend_model(mask, model, **{"device": "h200", **options})


def test_a_model_takes_as_long_as_its_layers():
    mask = masks.build("causal_document", 32768, documents=[20000, 12768])
    found = ask(mask, "gpt-oss-20b")
    window = mask & masks.build("causal_sliding_window", 32768, window=127)
    alone = [recommend(each, heads=(64, 8), head_dim=64, sinks=True, device="h200").best for each in (window, mask)]
    assert [layer.choice for layer in found.layers] == alone
    for name in ("forward", "backward", "total", "low", "high"):
        expected = sum(12 * getattr(choice.seconds, name) for choice in alone)
        assert getattr(found.seconds, name) == pytest.approx(expected)
    told = found.as_json()
    assert told["seconds"]["total"] == found.seconds.total
    assert [layer["choice"]["call"] for layer in told["layers"]] == [choice.call for choice in alone]
    assert ask(mask, "gpt-oss-20b", training=False).seconds.backward is None


def test_on_several_ranks_all_layers_share_their_layout():
    mask = masks.build("causal", 32768)
    found = ask(mask, "gemma-3-27b", ranks=4)
    (layout,) = {layer.choice.layout for layer in found.layers}
    assert layout in str(found)
    every = [
        {choice.layout: choice.seconds.ranked for choice in reversed(layer.found.choices)} for layer in found.layers
    ]
    sums = {
        each: sum(layer.kind.count * times[each] for layer, times in zip(found.layers, every, strict=True))
        for each in set.intersection(*map(set, every))
    }
    assert sums[layout] == min(sums.values())


def test_layers_without_a_choice_are_said_and_the_others_summed(file):
    mask = masks.build("causal", 131072)  # sdpa has a path for it, and would need a dense matrix for a window
    config = {**HEADS, "head_dim": 128, "model_type": "gemma3_text", "query_pre_attn_scalar": 128}
    found = ask(mask, file(config), kernels=["sdpa"])
    window, whole = found.layers
    assert (window.kind.count, window.choice) == (10, None)
    assert found.seconds.total == pytest.approx(2 * whole.choice.seconds.total)
    assert found.as_json()["layers_without_choice"] == 10
    assert "10 layers without a choice (window of 4,096); the sum lacks them" in str(found)
    assert "dense" in str(found)  # the reason
    assert ask(mask, file(config), memory="2GB").seconds is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "is an object, and this is a list"),
        ({"model_type": "mamba", "num_hidden_layers": 4}, "there is no num_attention_heads"),
        ({**HEADS, "num_attention_heads": "64"}, "num_attention_heads is '64'"),
        ({**HEADS, "num_hidden_layers": 10**12}, "num_hidden_layers is 1000000000000"),
        ({**HEADS, "head_dim": None}, "neither head_dim nor hidden_size"),
        ({**HEADS, "layer_types": ["full_attention"]}, "layer_types has 1 layers"),
        ({**HEADS, "layer_types": ["chunked_attention"] * 12}, "layers of chunked_attention"),
        ({**HEADS, "layer_types": ["linear_attention"] * 12}, "none of its 12 layers"),
        ({**HEADS, "index_topk": 2048}, "index_topk is 2048"),
        ({**HEADS, "mamba_d_state": 64}, "mamba_d_state is 64"),
    ],
    ids=str,
)
def test_a_file_that_does_not_say_it_is_refused_in_a_line(file, config, said):
    with pytest.raises(RequestError, match=said) as raised:
        find_model(file(config))
    assert "config.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_that_nobody_knows_gets_the_nearest_ones(tmp_path):
    with pytest.raises(UnknownNameError, match=r"gpt-oss-20b.*config\.json"):
        find_model("gpt-oss-21b")
    with pytest.raises(UnknownNameError):
        find_model("x" * 5000)
    with pytest.raises(RequestError, match="cannot read"):
        find_model(tmp_path)


def test_arguments_that_a_model_decides_on_are_refused():
    with pytest.raises(RequestError, match="heads"):
        recommend_model(masks.build("causal", 1024), "qwen3-8b", device="h200", heads=(8, 8))
