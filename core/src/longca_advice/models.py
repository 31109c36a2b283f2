"""Models by name, or by a `config.json` of transformers: the attention of their layers.

`models.jsonl` has the fields of some models' published `config.json`. A user's file is read in the same way. The fields
have the meaning of transformers 5.24.
"""

from __future__ import annotations

import json
import math
import os.path
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError

from longca.errors import RequestError, UnknownNameError
from longca.limits import shown
from longca.masks import Mask
from longca.masks.trees import within_window

__all__ = ["LayerKind", "Model", "find_model", "known_models"]

#: The kinds of layers: whether they have a window, or None for layers without softmax attention.
_KINDS = {"full_attention": False, "attention": False, "sliding_attention": True} | dict.fromkeys(
    ("linear_attention", "conv", "mamba", "moe")
)
_GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
#: The fields that files of some model types leave out.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gemma2": {**_GEMMA, "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0},
    "gemma3_text": {**_GEMMA, "sliding_window_pattern": 6, "num_attention_heads": 8, "num_key_value_heads": 4},
    "gpt_oss": {"sliding_window_pattern": 2},
    "olmo3": {"sliding_window_pattern": 4},
    **{name: {"use_sliding_window": False} for name in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")},
    **{name: {"full_attention_interval": 4} for name in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")},
}
#: Model types with a sink for each query head.
_SINKS = frozenset({"gpt_oss", "granite_swa", "granitemoe_swa"})
#: The fields of models whose layers differ in other ways than by a window, or that list their kinds in other ways.
_UNKNOWN = (
    *("index_topk", "compress_ratios", "use_bidirectional_attention", "is_encoder_decoder", "attention_value_scale"),
    *("global_head_dim", "per_layer_config", "swa_head_dim", "attention_other_setting", "num_sliding_attention_heads"),
    *("attn_layer_period", "attn_layer_indices", "attn_type_list", "full_attn_idxs", "hybrid_override_pattern"),
)


@dataclass(frozen=True)
class LayerKind:
    """The attention of a model's layers of one kind.

    Attributes:
        count: Number of these layers.
        heads: Query heads and KV heads. Training of multi-head latent attention has as many of both.
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v. None for that of q and k.
        window: Keys that a query sees at most, itself included. None without a window.
        softmax_scale: Factor on the scores. None for 1/√head_dim.
        softcap: Bound of the scores. None for no bound.
        sinks: Whether each query head has a sink.
    """

    count: int
    heads: tuple[int, int]
    head_dim: int
    head_dim_v: int | None = None
    window: int | None = None
    softmax_scale: float | None = None
    softcap: float | None = None
    sinks: bool = False

    def mask(self, mask: Mask) -> Mask:
        """The mask of these layers, from the mask of layers without a window. RequestError if its heads differ."""
        if self.window is not None and mask.heads > 1:
            raise RequestError("layers with a window need one mask for all heads; give --mask-heads 1 or mask.head(0)")
        if self.window is None or (within := within_window(mask, self.window)) is mask:
            return mask
        within.factors = {**mask.factors, "sliding_window": self.window}
        return within


@dataclass(frozen=True)
class Model:
    """A model's kinds of layers, and the number of its layers without softmax attention."""

    name: str
    kinds: tuple[LayerKind, ...]
    without_attention: int = 0


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """The fields of models, by their names."""
    lines = (resources.files("longca_advice") / "models.jsonl").read_text(encoding="utf-8").splitlines()
    return {each.pop("name"): each for each in map(json.loads, lines)}


def find_model(model: str | Path) -> Model:
    """The model of a name such as `gemma-3-27b` or `google/gemma-3-27b-it`, of a `config.json`, or of its folder.

    Raises:
        UnknownNameError: Nobody knows the model.
        RequestError: A file cannot be read, or does not describe the attention of the layers.
    """
    path, known = Path(model), known_models()
    name = re.sub("-(it|pt|instruct|base)$", "", str(model).lower().rpartition("/")[2])
    if str(model).lower() not in known and (path.suffix == ".json" or os.path.exists(path)):
        path = path / "config.json" if os.path.isdir(path) else path
        return _model(str(path), _read(path))
    if name not in known:
        unknown = UnknownNameError("model", str(model), known)
        raise UnknownNameError(f"{unknown} Or give the path of a config.json")
    return _model(name, known[name])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}. Give the path of a config.json") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is no JSON: {error}. Give the path of a config.json") from None


def _model(source: str, fields: Any) -> Model:
    """The model of the fields of a file."""
    try:
        if not isinstance(fields, dict):
            raise RequestError(f"a config.json is an object, and this is a {type(fields).__name__}")
        text = fields.get("text_config")
        fields = {**fields, **text} if isinstance(text, dict) else fields
        defaults = _DEFAULTS.get(str(fields.get("model_type")), {})
        return _Config.model_validate({**defaults, **fields}).model(source, fields)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))} is {shown(first['input'])}: {first['msg'].lower()}"
        if first["type"] == "missing":
            why = f"there is no {first['loc'][0]}: the model has no attention, or describes it in another way"
    except RequestError as error:
        why = str(error)
    raise RequestError(f"{source}: {why}. Give --heads and --head-dim in place of --model")


_Count = Annotated[int, Field(gt=0, le=2**20)]
_Size = Annotated[int, Field(ge=0, le=2**30)]


class _Config(BaseModel):
    """The fields of a `config.json` that decide on attention."""

    model_config = ConfigDict(strict=True)

    model_type: str = ""
    num_attention_heads: _Count
    num_hidden_layers: _Count
    num_key_value_heads: _Count | None = None
    hidden_size: _Count | None = None
    head_dim: _Count | None = None
    qk_nope_head_dim: _Count | None = None
    qk_rope_head_dim: _Count | None = None
    v_head_dim: _Count | None = None
    layer_types: list[str] | None = None
    full_attention_interval: _Count | None = None
    sliding_window: _Size | None = None
    sliding_window_pattern: _Count | str | None = None
    use_sliding_window: bool = True
    max_window_layers: _Size = 0
    attention_multiplier: PositiveFloat | None = None
    query_pre_attn_scalar: PositiveFloat | None = None
    attn_logit_softcapping: PositiveFloat | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

    def model(self, source: str, fields: Mapping[str, Any]) -> Model:
        """The model. RequestError if other fields of the file describe its layers."""
        unlisted = (name for name in fields if "mamba" in name and self.layer_types is None)
        for name in (*_UNKNOWN, *unlisted):
            if fields.get(name):
                raise RequestError(f"{name} is {shown(fields[name])}, and LongCA does not know what such layers see")
        kinds = self.kinds
        if unknown := sorted(set(kinds) - set(_KINDS)):
            raise RequestError(f"LongCA does not know what layers of {', '.join(unknown)} see")
        counts = Counter(_KINDS[kind] and self.window is not None for kind in kinds)
        without = counts.pop(None, 0)
        if not counts:
            raise RequestError(f"none of its {without} layers has softmax attention")
        return Model(source, tuple(self.layers(bool(kind), count) for kind, count in counts.items()), without)

    @property
    def window(self) -> int | None:
        """The window of layers that have one."""
        return (self.sliding_window or None) if self.use_sliding_window else None

    @property
    def kinds(self) -> list[str]:
        """The kind of each layer, as transformers calls it."""
        if self.layer_types is not None:
            if len(self.layer_types) != self.num_hidden_layers:
                count = len(self.layer_types)
                raise RequestError(f"layer_types has {count} layers, and num_hidden_layers is {self.num_hidden_layers}")
            return self.layer_types
        layers, pattern = range(self.num_hidden_layers), self.sliding_window_pattern
        every = self.full_attention_interval or (len(pattern) if isinstance(pattern, str) else pattern) or None
        most = "linear_attention" if self.full_attention_interval else "sliding_attention"
        is_full = [layer < self.max_window_layers if every is None else (layer + 1) % every == 0 for layer in layers]
        return ["full_attention" if full else most for full in is_full]

    def layers(self, has_window: bool, count: int) -> LayerKind:
        """The layers with a window, or those without one."""
        heads, heads_kv = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        dim, dim_v = self.head_dim or (self.hidden_size or 0) // heads, None
        if self.qk_nope_head_dim and self.qk_rope_head_dim:  # multi-head latent attention
            dim, dim_v, heads_kv = self.qk_nope_head_dim + self.qk_rope_head_dim, self.v_head_dim, heads
        if not dim:
            raise RequestError("there is neither head_dim nor hidden_size")
        scale = self.attention_multiplier or (self.query_pre_attn_scalar or dim) ** -0.5 * self.rope_factor
        return LayerKind(
            count,
            (heads, heads_kv),
            dim,
            None if dim_v == dim else dim_v,
            self.window if has_window else None,
            None if math.isclose(scale, dim**-0.5) else scale,
            self.attn_logit_softcapping,
            self.model_type in _SINKS,
        )

    @property
    def rope_factor(self) -> float:
        """The factor of YaRN on the scores of multi-head latent attention (transformers' `yarn_apply_mscale`)."""
        rope = self.rope_scaling or self.rope_parameters or {}
        factor, mscale = rope.get("factor", 1), rope.get("mscale_all_dim", 0)
        is_scaled = self.qk_nope_head_dim and isinstance(factor, int | float) and isinstance(mscale, int | float)
        return (1 + 0.1 * mscale * math.log(factor)) ** 2 if is_scaled and factor > 1 else 1.0
