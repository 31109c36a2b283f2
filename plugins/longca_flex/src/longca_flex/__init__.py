"""FlexAttention for LongCA: one kernel, `flex`.

This module is what the entry point names, so it is imported whenever kernels are listed: it holds the manifest and
the hook, and imports neither torch nor the kernel.
"""

from longca import Backward, KernelManifest, Offer, hookimpl
from longca.masks import Form

__all__ = ["FLEX", "provide_kernel"]

_COMMON = {
    "form": Form.ROW_INTERVALS,
    "most": 8,
    "unequal_lengths": True,
    "backward": Backward.EXTERNAL,
    "deterministic": True,
    "metadata": "O(blocks)",
    "fills_buffers": False,
}

_HALF = ("bfloat16", "float16")
_ANY, _LARGE = ">=8.0", ">=9.0,<12"

# A head dimension is padded to a power of two, and the tiles that PyTorch takes for it must fit into shared memory:
# beyond 128, and in float32 beyond 64, they are made for the 227 KiB of data-centre GPUs since Hopper. In float32 the
# dimensions between take more than that.
_ROWS = (
    {"dtypes": _HALF, "cuda": _ANY, "head_dims": tuple(range(16, 129, 16))},
    {"dtypes": _HALF, "cuda": _LARGE, "head_dims": tuple(range(144, 257, 16))},
    {"dtypes": ("float32",), "cuda": _ANY, "head_dims": (16, 32, 64)},
    {"dtypes": ("float32",), "cuda": _LARGE, "head_dims": (128, 256)},
)

FLEX = KernelManifest(
    name="flex",
    family="flex",
    title="PyTorch FlexAttention",
    upstream="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    license="BSD-3-Clause",
    implementation="longca_flex.flex:Flex",
    offers=tuple(Offer.model_validate({**_COMMON, **row}) for row in _ROWS),
)


@hookimpl
def provide_kernel() -> KernelManifest:
    """The kernel of this plugin."""
    return FLEX
