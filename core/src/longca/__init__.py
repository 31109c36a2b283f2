"""LongCA: which attention kernel and which context-parallel strategy is valid, correct and fastest.

Importing this imports nothing else: every name is fetched when it is first used, and torch only for `attention`,
`choose_blocks`, `layout`, `prefetch`, `sdpa` and `varlen`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longca import masks
    from longca.hookspecs import hookimpl
    from longca.kernels.attention import attention
    from longca.kernels.choose_blocks import choose_blocks
    from longca.kernels.prefetch import prefetch
    from longca.kernels.shapes import sdpa, varlen
    from longca.manifests import (
        Backward,
        Device,
        KernelManifest,
        Layout,
        Offer,
        Problem,
        Reason,
        Step,
        StrategyManifest,
        Transport,
        Verdict,
    )
    from longca.parallel.layouts import layout
    from longca.plugins import registry, resolve
    from longca_advice.model_recommendation import recommend_model
    from longca_advice.recommend import recommend

    __version__: str

__all__ = [
    "Backward",
    "Device",
    "KernelManifest",
    "Layout",
    "Offer",
    "Problem",
    "Reason",
    "Step",
    "StrategyManifest",
    "Transport",
    "Verdict",
    "__version__",
    "attention",
    "choose_blocks",
    "hookimpl",
    "layout",
    "masks",
    "prefetch",
    "recommend",
    "recommend_model",
    "registry",
    "resolve",
    "sdpa",
    "varlen",
]

_HOMES = {
    "attention": "longca.kernels.attention",
    "choose_blocks": "longca.kernels.choose_blocks",
    "hookimpl": "longca.hookspecs",
    "layout": "longca.parallel.layouts",
    "prefetch": "longca.kernels.prefetch",
    "recommend": "longca_advice.recommend",
    "recommend_model": "longca_advice.model_recommendation",
    "registry": "longca.plugins",
    "resolve": "longca.plugins",
    "sdpa": "longca.kernels.shapes",
    "varlen": "longca.kernels.shapes",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        import importlib_metadata

        return importlib_metadata.version("longca-core")
    if name == "masks":
        return importlib.import_module("longca.masks")
    if name not in __all__:
        raise AttributeError(f"module 'longca' has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(_HOMES.get(name, "longca.manifests")), name)
    except ModuleNotFoundError as error:
        from longca.manifests.installs import absent

        raise absent(error, f"longca.{name}") or error from None
    if name == "attention":  # every layer of a model asks for it
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
