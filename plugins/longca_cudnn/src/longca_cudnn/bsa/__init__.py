"""cudnn_bsa: the manifest of cuDNN's open block-sparse kernels. Torch-free."""

from __future__ import annotations

from typing import Any

from longca import Backward, KernelManifest, Offer
from longca.masks import Form
from longca_cudnn.flex import OPEN

__all__ = ["CUDNN_BSA"]

_COMMON: dict[str, Any] = {
    "form": Form.BLOCK_SPARSE,
    "mask_heads": "query",
    "unequal_lengths": True,
    "metadata": "O(blocks)",
    "fills_buffers": False,
}

#: The forward has no atomic sums. The backward has them.
_FORWARD: dict[str, Any] = {**_COMMON, "dtypes": ("bfloat16", "float16"), "deterministic": True}
_BOTH: dict[str, Any] = {**_COMMON, "dtypes": ("bfloat16",), "backward": Backward.EXTERNAL, "gqa": False}

_HOPPER: dict[str, Any] = {"verified_on": "==9.0"}
_BLACKWELL: dict[str, Any] = {"expected_on": ">=10.0,!=10.1,<10.4"}
_GEFORCE: dict[str, Any] = {"expected_on": ">=12.0,<13"}

#: Blocks that tiles of 128 fill, and all blocks. Blackwell has one set of kernels for each, with other limits.
_OF_128: dict[str, Any] = {"block_sizes": (128, 256, 384, 512)}
_ANY: dict[str, Any] = {"variable_blocks": True}

_ROWS: tuple[dict[str, Any], ...] = (
    {**_BOTH, **_HOPPER, **_ANY, "head_dims": (128,)},
    {**_FORWARD, **_HOPPER, **_ANY, "head_dims": (64, 96, 128)},
    {**_BOTH, **_BLACKWELL, **_OF_128, "head_dims": (64, 128)},
    {**_FORWARD, **_BLACKWELL, **_OF_128, "head_dims": (64, 96, 128)},
    {**_BOTH, **_BLACKWELL, **_ANY, "head_dims": (128,)},
    {**_FORWARD, **_GEFORCE, **_ANY, "head_dims": (128,)},
)

CUDNN_BSA = KernelManifest(
    name="cudnn_bsa",
    family="cudnn",
    title="cuDNN block-sparse attention (CuTe)",
    upstream="https://github.com/NVIDIA/cudnn-frontend",
    license="Apache-2.0",
    requires=(OPEN,),
    install="pip install 'longca-cudnn[open]'",
    implementation="longca_cudnn.bsa.kernel:CuDNNBlockSparse",
    offers=tuple(Offer.model_validate(row) for row in _ROWS),
)
