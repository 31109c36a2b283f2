"""recommend_model: the choices for each kind of a model's layers, and the attention of a whole step."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from longca.errors import RequestError
from longca.masks import Mask
from longca_advice.choices import Choice, Recommendation, Seconds
from longca_advice.models import LayerKind, Model, find_model
from longca_advice.recommend import recommend

__all__ = ["LayerAnswer", "ModelRecommendation", "recommend_model"]


@dataclass(frozen=True)
class LayerAnswer:
    """The recommendation for layers of one kind.

    Attributes:
        found: All choices for these layers by themselves.
        choice: The choice for these layers in the model, or None if none fits. On several ranks all layers share a
            strategy, a mesh and a placement, so it need not be the first choice. It is predicted with the shards that
            the placement gives the layers' own mask.
    """

    kind: LayerKind
    found: Recommendation
    choice: Choice | None

    def as_json(self) -> dict[str, Any]:
        """It as plain data."""
        choice = self.choice and self.choice.as_json()
        return {**asdict(self.kind), "choice": choice, "recommendation": self.found.as_json()}


@dataclass(frozen=True)
class ModelRecommendation:
    """The recommendation for all layers of a model.

    Attributes:
        text: The question in words, as lines.
        is_shared: Whether the chosen strategy, mesh and placement are the same for all layers. They differ only if no
            strategy, mesh and placement suits all layers.
    """

    model: Model
    text: str
    layers: tuple[LayerAnswer, ...]
    is_shared: bool

    def __repr__(self) -> str:
        step = f"{self.seconds.total * 1e3:.3g} ms a step" if self.seconds else "nothing"
        return f"<ModelRecommendation of {self.model.name}: {step}, {len(self.layers)} kinds of layers>"

    def __str__(self) -> str:
        """The text that `longca recommend --model` prints."""
        text: str = importlib.import_module("longca_bench.reports.model_recommendation").model_text(self)
        return text

    @property
    def seconds(self) -> Seconds | None:
        """The attention of a step: the sum over the layers that have a choice, or None if none has."""
        each = [(layer.kind.count, layer.choice.seconds) for layer in self.layers if layer.choice is not None]
        if not each:
            return None
        forward, total, low, high = (
            sum(count * getattr(seconds, name) for count, seconds in each)
            for name in ("forward", "total", "low", "high")
        )
        return Seconds(forward, None if each[0][1].backward is None else total - forward, total, low, high)

    def as_json(self) -> dict[str, Any]:
        """The answer as plain data. The form is a contract."""
        return {
            "model": self.model.name,
            "text": self.text,
            "layers": [layer.as_json() for layer in self.layers],
            "layers_without_choice": sum(layer.kind.count for layer in self.layers if layer.choice is None),
            "layers_without_attention": self.model.without_attention,
            "shared_placement": self.is_shared,
            "seconds": self.seconds and asdict(self.seconds),
        }


def recommend_model(mask: Mask, model: str | Path | Model, **options: Any) -> ModelRecommendation:
    """Recommends for each kind of a model's layers, and sums the predicted times of all layers. It runs no kernel.

    Args:
        mask: The mask of layers without a window. Layers with a window see the part of it within their window.
        model: A model, its name such as `gpt-oss-20b`, or the path of its `config.json` or of the folder with it.
        **options: Other arguments of `longca.recommend`. The model decides on heads, dims, scale, soft cap and sinks.

    Raises:
        UnknownNameError: Nobody knows the model.
        RequestError: As of `longca.recommend`. Or a file does not describe the attention of the layers.
    """
    known = model if isinstance(model, Model) else find_model(model)
    if decided := sorted(set(options) & {field.name for field in fields(LayerKind)}):
        raise RequestError(f"{known.name} decides on {', '.join(decided)} too; leave out these arguments")
    found = [_recommend(kind, mask, options) for kind in known.kinds]
    shared = _shared(known.kinds, found)
    choices = [each.best for each in found] if shared is None else shared
    layers = tuple(map(LayerAnswer, known.kinds, found, choices))
    return ModelRecommendation(known, _text(known, mask, found[0]), layers, shared is not None)


def _recommend(kind: LayerKind, mask: Mask, options: dict[str, Any]) -> Recommendation:
    shape = {name: value for name, value in vars(kind).items() if name not in ("count", "window")}
    return recommend(kind.mask(mask), **shape, **options)


def _shared(kinds: Sequence[LayerKind], found: Sequence[Recommendation]) -> list[Choice | None] | None:
    """The choices with one strategy, mesh and placement of the least predicted sum. None if the kinds share none."""
    layouts: list[dict[str | None, Choice]] = []
    for each in found:
        fitting = [choice for choice in each.choices if choice.fits is not False]
        layouts.append({one.layout: one for one in reversed(fitting)})  # the first of several counts
    some = [(kind.count, layout) for kind, layout in zip(kinds, layouts, strict=True) if layout]
    alike = [key for key in (some[0][1] if some else ()) if all(key in layout for _, layout in some)]
    if some and not alike:
        return None

    def seconds(key: str | None) -> float:
        return sum(count * (layout[key].seconds.ranked or layout[key].seconds.total) for count, layout in some)

    best = min(alike, key=seconds, default=None)
    return [layout.get(best) for layout in layouts]


def _text(model: Model, mask: Mask, first: Recommendation) -> str:
    """The question in words."""
    problem, where = first.problem, first.device.partition(" (")[0]
    where = where if first.ranks == 1 else ", ".join(filter(None, (f"{first.ranks} × {where}", problem["network"])))
    layers = sum(kind.count for kind in model.kinds)
    lines = [f"{model.name}: {layers} layers of attention, {mask.description}"]
    lines += [f"{problem['dtype']}, {problem['direction']}, on {where}"]
    return "\n".join([*lines, *problem["text"].splitlines()[2:]])
