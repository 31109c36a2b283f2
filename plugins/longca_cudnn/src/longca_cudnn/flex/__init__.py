"""cudnn_flex: the manifest of cuDNN's open FlexAttention kernels. Torch-free."""

from __future__ import annotations

from typing import Any

from longca import Backward, KernelManifest, Offer
from longca.manifests.sizes import Size
from longca.masks import Form

__all__ = ["CUDNN_FLEX", "OPEN"]

#: The release whose open kernels the adapters call. cuDNN calls their interfaces experimental.
OPEN = "nvidia-cudnn-frontend>=1.32,<1.33"

#: A table of 8 GiB. Planning holds it beside what it makes of it.
_MOST_ENDPOINTS = 2**31 - 1

_COMMON: dict[str, Any] = {
    "unequal_lengths": True,
    "backward": Backward.EXTERNAL,
    "dtypes": ("bfloat16", "float16"),
    "verified_on": "==9.0",
    "expected_on": ">=10.0,!=10.1,<10.4",
    "deterministic": True,
    "metadata": "O(blocks)",
}

_FORMS: tuple[dict[str, Any], ...] = (
    {"form": Form.ROW_INTERVALS},
    {
        "form": Form.BLOCK_SPARSE,
        "mask_heads": "query",
        "variable_blocks": True,
        "max_sizes": ((Size.ENDPOINTS, _MOST_ENDPOINTS),),
    },
)
#: On Hopper, values of another width have no backward with fewer KV heads.
_UNEQUAL: dict[str, Any] = {"gqa": False, "expected_on": None}
_HEAD_DIMS: tuple[dict[str, Any], ...] = (
    {"max_head_dim": 128, "head_dim_multiple": 8},
    {"head_dims": (256,)},
    {"max_head_dim": 128, "head_dim_multiple": 8, "unequal_head_dims": True, **_UNEQUAL},
    {"head_dims": ((192, 128),), **_UNEQUAL},
)

CUDNN_FLEX = KernelManifest(
    name="cudnn_flex",
    family="cudnn",
    title="cuDNN FlexAttention (CuTe)",
    upstream="https://github.com/NVIDIA/cudnn-frontend",
    license="BSD-3-Clause",
    requires=(OPEN,),
    install="pip install 'longca-cudnn[open]'",
    implementation="longca_cudnn.flex.kernel:CuDNNFlex",
    offers=tuple(Offer.model_validate({**_COMMON, **form, **dims}) for form in _FORMS for dims in _HEAD_DIMS),
)
