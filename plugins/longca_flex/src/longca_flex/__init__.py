"""FlexAttention for LongCA: the kernels `flex`, in Triton, and `flex_flash`, on FlashAttention-4.

The entry point names this module, so every listing of kernels imports it. It has the manifests and the hook, and
imports neither torch nor the kernels.
"""

from longca import Backward, KernelManifest, Offer, hookimpl
from longca.manifests.sizes import Size
from longca.masks import Form, Mask

__all__ = ["FLEX", "FLEX_FLASH", "INTERVALS", "has_few_intervals", "provide_kernel"]

#: Intervals a row. FlexAttention compiles one kernel for each of these numbers.
INTERVALS = 8

_COMMON = {
    "unequal_lengths": True,
    "backward": Backward.EXTERNAL,
    "deterministic": True,
    "metadata": "O(blocks)",
    "fills_buffers": False,
}

_HALF = ("bfloat16", "float16")
#: PyTorch has tiles for 8.0, 9.0, 10.0 and 12.0 (torch/_inductor/template_heuristics/triton.py).
_ANY = {"verified_on": "==9.0", "expected_on": ">=8.0,<13"}
_LARGE = {"verified_on": "==9.0", "expected_on": ">=10.0,<12"}

# A head dimension is padded to a power of two, and PyTorch's tiles for it must fit in shared memory. Dimensions beyond
# 128, and beyond 64 in float32, need the 227 KiB of data-centre GPUs since Hopper. In float32 the other dimensions
# between the powers of two need more than that.
_TO_128 = tuple(range(16, 129, 16))
_ROWS = (
    {"dtypes": _HALF, **_ANY, "head_dims": _TO_128},
    {"dtypes": _HALF, **_LARGE, "head_dims": tuple(range(144, 257, 16))},
    {"dtypes": ("float32",), **_ANY, "head_dims": (16, 32, 64)},
    {"dtypes": ("float32",), **_LARGE, "head_dims": (128, 256)},
)

_HOPPER = {"dtypes": _HALF, "verified_on": "==9.0"}
_MORE_ROWS = (
    {**_HOPPER, "head_dims": _TO_128, "unequal_head_dims": True},
    {**_HOPPER, "head_dims": ((192, 128),)},
    {**_HOPPER, "head_dims": (64, 128, 256), "softcap": True},
)

_INTERVALS = {"form": Form.ROW_INTERVALS, "most": INTERVALS}

# A mask that all heads share is taken as intervals if it has few intervals a row. For blocks other than 128 the tiles
# here differ from PyTorch's default tiles.
_BLOCKS = {
    "form": Form.BLOCK_SPARSE,
    "variable_blocks": True,
    "mask_heads": "query",
    "dtypes": _HALF,
    **_LARGE,
    "head_dims": _TO_128,
    "max_sizes": ((Size.TILES, 2**31 - 1),),  # the kernels count in 32 bits
}

FLEX = KernelManifest(
    name="flex",
    family="flex",
    title="PyTorch FlexAttention",
    upstream="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    license="BSD-3-Clause",
    implementation="longca_flex.flex:Flex",
    offers=(
        *(Offer.model_validate({**_COMMON, **_INTERVALS, **row}) for row in _ROWS),
        Offer.model_validate({**_COMMON, **_BLOCKS}),
        *(Offer.model_validate({**_COMMON, **_INTERVALS, **row}) for row in _MORE_ROWS),
    ),
)


#: Other head dimensions than 64 and 128 gave wrong gradients in FlashAttention-4 itself.
FLEX_FLASH = KernelManifest(
    name="flex_flash",
    family="flex",
    title="PyTorch FlexAttention on FlashAttention-4",
    upstream="https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html",
    license="BSD-3-Clause",
    requires=("flash-attn-4==4.0.0b36", "nvidia-cutlass-dsl>=4.6.2"),
    install="pip install 'longca-flex[flash]'",
    implementation="longca_flex.flash:FlexFlash",
    offers=(
        Offer(
            form=Form.ROW_INTERVALS,
            most=INTERVALS,
            unequal_lengths=True,
            backward=Backward.EXTERNAL,
            dtypes=("bfloat16", "float16"),
            head_dims=(64, 128),
            verified_on="==9.0",
            metadata="O(blocks)",
            fills_buffers=False,
        ),
    ),
)


def has_few_intervals(mask: Mask) -> bool:
    """Whether a mask is taken as row intervals. A block-sparse mask may be one of these."""
    return mask.admits(Form.ROW_INTERVALS) and mask.count(Form.ROW_INTERVALS) <= INTERVALS


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """The manifests of flex and flex_flash."""
    return FLEX, FLEX_FLASH
