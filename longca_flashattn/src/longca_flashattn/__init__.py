"""FlashAttention 2, 3 and 4 for LongCA: the problems that each one takes, and the devices on which it runs."""

from __future__ import annotations

from typing import Any

from longca.hookspecs import hookimpl
from longca.manifests import Backward, KernelManifest, Offer
from longca.manifests.sizes import Size
from longca.masks import Form

__all__ = ["FA2", "FA3", "FA3_SPARSE", "FA4", "NATIVE_FORMS", "provide_kernel"]

_REPOSITORY = "https://github.com/Dao-AILab/flash-attention"

#: The most layers that were measured (docs: Dense kernels, Layers). The cost model predicts seven and eight within 7 %.
#: Eight layers take a staircase of 255 steps, so that placements in short chunks are rarely refused.
_LAYERS = 8

#: Numbers of intervals a token. FlashAttention-4 compiles one kernel for each of these numbers.
_INTERVALS = 8

#: The forms of masks that FlashAttention-4 takes natively.
NATIVE_FORMS = (Form.FULL, Form.CAUSAL, Form.WINDOW, Form.VARLEN)


def _calls(**common: Any) -> tuple[Offer, ...]:
    """Offers of the masks that one call takes."""
    forms: tuple[dict[str, Any], ...] = (
        # If every head sees everything, the heads do not differ.
        {"form": Form.FULL, "metadata": "O(1)", "mask_heads": "query"},
        {"form": Form.CAUSAL, "metadata": "O(1)"},
        {"form": Form.WINDOW, "metadata": "O(1)"},
        {"form": Form.VARLEN, "metadata": "O(documents)"},
    )
    return tuple(Offer.model_validate({**common, **form}) for form in forms)


def _with_layers(**common: Any) -> tuple[Offer, ...]:
    layers = {**common, "form": Form.LAYERS, "most": _LAYERS, "metadata": "O(slices)", "fills_buffers": False}
    return (*_calls(**common), Offer.model_validate(layers))


#: Head dimensions of all masks of FlashAttention-4, and further ones of the masks that it takes natively. Others
#: compile, but gradients of heads of 80, and of 8:1 heads of 40, were wrong on an H200.
_FA4_HEAD_DIMS = (64, 128)
_FA4_NATIVE: tuple[dict[str, Any], ...] = (
    {"head_dims": (96, 192, 256)},
    {"head_dims": (80,), "backward": Backward.NONE},
    {"head_dims": ((192, 128),), "gqa": False},
)

_COMMON: dict[str, Any] = {
    "dtypes": ("bfloat16", "float16"),
    "backward": Backward.EXTERNAL,
    "unequal_lengths": True,
}

#: PyTorch's FlashAttention-2 runs on 8.0 to 12.1. It has no backward of head dimensions from 200 to 224 on 8.6 to 8.9
#: and on 12.x (PyTorch's sdp_utils.cpp, check_flash_attention_hardware_support and
#: check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120).
_FA2_LARGE: dict[str, Any] = {"verified_on": "==9.0", "expected_on": ">=8.0,<12,!=8.6,!=8.7,!=8.9", "max_head_dim": 256}
_FA2_SMALL: dict[str, Any] = {"expected_on": ">=8.6,<12.2,!=9.*,!=10.*,!=11.*", "max_head_dim": 192}

#: FlashAttention-4's other kernels for these masks are those of Blackwell (flash_attn/cute/interface.py,
#: _validate_head_dims and _flash_attn_bwd). The lists of tiles here are laid out for Hopper.
_FA4_BLACKWELL = ">=10.0,<12"

#: Masks that FlashAttention-4 takes by lists of tiles. Block-sparse comes first: one mask for all heads has both forms.
_FA4_LISTS: dict[str, Any] = {"verified_on": "==9.0", "head_dims": _FA4_HEAD_DIMS, "metadata": "O(blocks)"}
_FA4_ROWS: tuple[dict[str, Any], ...] = (
    {"form": Form.BLOCK_SPARSE, "mask_heads": "query", "block_sizes": (128, 256)},
    {"form": Form.BLOCK_SPARSE, "mask_heads": "query", "variable_blocks": True},
    {
        "form": Form.ROW_INTERVALS,
        "most": _INTERVALS,
        "max_sizes": ((Size.BACKWARD_COLUMN_INTERVALS, _INTERVALS),),
    },
)

FA2 = KernelManifest(
    name="fa2",
    family="flashattn",
    title="FlashAttention-2",
    upstream="https://arxiv.org/abs/2307.08691",
    license="BSD-3-Clause",
    implementation="longca_flashattn.fa2:FlashAttention2",
    offers=tuple(
        offer
        for devices in (_FA2_LARGE, _FA2_SMALL)
        for offer in _with_layers(**_COMMON, **devices, head_dim_multiple=8, deterministic=True, fills_buffers=False)
    ),
)

#: The wheel of xFormers is built without soft caps (FLASHATTENTION_DISABLE_SOFTCAP), so no offer has one.
_FA3: dict[str, Any] = {
    "family": "flashattn",
    "upstream": "https://arxiv.org/abs/2407.08608",
    "license": "BSD-3-Clause",
    # The wheels of xFormers 0.0.35 have no FlashAttention-3.
    "requires": ("flash-attn-3>=3.0.0 | xformers==0.0.34",),
    "install": "pip install --no-deps xformers==0.0.34 nvidia-cuda-runtime-cu12",
}

_FA3_COMMON: dict[str, Any] = {**_COMMON, "deterministic": True, "fills_buffers": False}

FA3 = KernelManifest(
    **_FA3,
    name="fa3",
    title="FlashAttention-3",
    implementation="longca_flashattn.fa3:FlashAttention3",
    offers=(
        *_with_layers(**_FA3_COMMON, verified_on="==9.0", max_head_dim=256, head_dim_multiple=8),
        # Its backward takes values of the same head dimension alone.
        *_with_layers(**{**_FA3_COMMON, "backward": Backward.NONE}, verified_on="==9.0", head_dims=((192, 128),)),
    ),
)

FA3_SPARSE = KernelManifest(
    **_FA3,
    name="fa3_sparse",
    title="FlashAttention-3 on block-sparse masks",
    implementation="longca_flashattn.fa3_sparse:FlashAttention3Sparse",
    offers=(
        Offer(
            form=Form.BLOCK_SPARSE,
            variable_blocks=True,
            mask_heads="kv",
            unequal_lengths=True,
            dtypes=("bfloat16", "float16"),
            max_head_dim=256,
            head_dim_multiple=8,
            verified_on="==9.0",
            deterministic=True,
            metadata="O(blocks)",
            fills_buffers=False,
        ),
    ),
)

_FA4_COMMON: dict[str, Any] = {**_COMMON, "deterministic": True}
_FA4_OFFERS: tuple[Offer, ...] = (
    *_calls(**_FA4_COMMON, verified_on="==9.0", head_dims=_FA4_HEAD_DIMS, expected_on=_FA4_BLACKWELL),
    *(offer for dims in _FA4_NATIVE for offer in _calls(**{**_FA4_COMMON, "verified_on": "==9.0", **dims})),
    *(Offer.model_validate({**_COMMON, **_FA4_LISTS, **row}) for row in _FA4_ROWS),
    # With a soft cap a forward takes 1.5 to 2.7 times as long, and a backward up to 1.5 times
    # (results/h200/advice/softcap). With lists of tiles, the capped kernels do not compile.
    *_calls(**_FA4_COMMON, verified_on="==9.0", head_dims=(*_FA4_HEAD_DIMS, 256), softcap=True),
)

FA4 = KernelManifest(
    name="fa4",
    family="flashattn",
    title="FlashAttention-4 (CuTe)",
    upstream=_REPOSITORY,
    license="BSD-3-Clause",
    # With the CUTLASS DSL 4.6.0 and 4.6.1 a backward on Blackwell does not return (flash-attention#2797).
    requires=("flash-attn-4==4.0.0b36", "nvidia-cutlass-dsl>=4.6.2"),
    install="pip install 'longca-flashattn[fa4]'",
    implementation="longca_flashattn.fa4:FlashAttention4",
    offers=_FA4_OFFERS,
)


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """The manifests of FlashAttention 2, 3 and 4."""
    return FA2, FA3, FA3_SPARSE, FA4
