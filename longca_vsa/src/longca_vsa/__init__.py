"""Block-sparse attention for LongCA: the manifests of its kernels.

The entry point names this module. It imports neither torch nor a kernel's library.
"""

from __future__ import annotations

import math
from typing import Any

from longca import Backward, KernelManifest, Offer, Problem, Reason, Verdict, hookimpl
from longca.manifests.sizes import Size
from longca.masks import Form
from longca_vsa.bsa import BSA
from longca_vsa.bsa_gluon import BSA_GLUON

__all__ = ["BSA", "BSA_GLUON", "FA2_SPARSE", "VSA", "VSA_TRITON", "provide_kernel", "supports_mask"]

_COMMON: dict[str, Any] = {
    "form": Form.BLOCK_SPARSE,
    "mask_heads": "query",
    "unequal_lengths": True,
    "backward": Backward.EXTERNAL,
    "metadata": "O(blocks)",
    "fills_buffers": False,
    "max_sizes": ((Size.BLOCKS, 2**31 - 1),),  # they compute places in their block lists in 32 bits
}

#: The limits of both of fastvideo-kernel's kernels.
_VSA: dict[str, Any] = {
    **_COMMON,
    "block_sizes": (64,),
    "dtypes": ("bfloat16",),
    "head_dims": (64, 128),
    "gqa": False,
}

#: The adapters call private functions, so the version is exact. The library imports einops without requiring it.
_FASTVIDEO = ("fastvideo-kernel==0.3.2", "einops")

_UPSTREAM: dict[str, Any] = {"family": "vsa", "upstream": "https://arxiv.org/abs/2505.13389", "license": "Apache-2.0"}

VSA = KernelManifest(
    name="vsa",
    title="Video Sparse Attention (ThunderKittens, Hopper)",
    requires=(*_FASTVIDEO, "torch<2.13"),  # its library misses symbols of newer PyTorch, and cannot be loaded
    install="pip install 'longca-vsa[fastvideo]' 'torch<2.13'",
    implementation="longca_vsa.vsa:VideoSparseAttention",
    offers=(Offer.model_validate({**_VSA, "verified_on": "==9.0"}),),
    **_UPSTREAM,
)

VSA_TRITON = KernelManifest(
    name="vsa_triton",
    title="Video Sparse Attention (Triton)",
    # The kernels load by block pointers, which Triton 3.9 no longer has.
    requires=(*_FASTVIDEO, "triton>=3.4,<3.9"),
    install="pip install 'longca-vsa[fastvideo]' 'triton>=3.4,<3.9'",
    implementation="longca_vsa.vsa_triton:VideoSparseAttentionTriton",
    # The README of fastvideo-kernel: "Any CUDA GPU for Triton-based fallbacks". Triton needs 8.0, and bfloat16 too.
    # Its backward rounds scaled keys to bfloat16, so that gradients of large scores are wrong by any factor.
    offers=(Offer.model_validate({**_VSA, "backward": "none", "verified_on": "==9.0", "expected_on": ">=8.0,<13"}),),
    **_UPSTREAM,
)

FA2_SPARSE = KernelManifest(
    name="fa2_sparse",
    family="vsa",
    title="Block-Sparse-Attention on FlashAttention-2",
    upstream="https://github.com/mit-han-lab/Block-Sparse-Attention",
    license="BSD-3-Clause",
    requires=("block-sparse-attn==0.0.2",),
    install="pip install git+https://github.com/mit-han-lab/Block-Sparse-Attention",
    implementation="longca_vsa.fa2_sparse:FA2Sparse",
    offers=(
        Offer.model_validate(
            {
                **_COMMON,
                "block_sizes": (128,),
                "dtypes": ("bfloat16", "float16"),
                "head_dims": (32, 64, 128),
                # Its setup.py builds for 8.0 and 9.0. Devices of 8.6 and 8.9 run the code for 8.0.
                "verified_on": "==9.0",
                "expected_on": ">=8.0,<9",
            }
        ),
    ),
)


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """Every block-sparse kernel of this distribution."""
    return BSA, BSA_GLUON, VSA, VSA_TRITON, FA2_SPARSE


@hookimpl
def supports_mask(kernel: str, problem: Problem) -> Verdict | None:
    """Refuses other factors on the scores than the one that fastvideo-kernel has compiled in."""
    if kernel not in (VSA.name, VSA_TRITON.name) or math.isclose(problem.scale, problem.head_dim**-0.5, rel_tol=1e-6):
        return None
    asked, offered = f"a softmax_scale of {problem.scale:g} was asked", f"{kernel} takes 1/√head_dim alone"
    return Verdict(kernel, None, (Reason("form", asked, offered, "Try bsa."),))
