"""The core's own kernels, provided through the same hook as the kernels of plugins."""

from typing import Any

from longca.hookspecs import hookimpl
from longca.manifests import Backward, KernelManifest, Offer
from longca.masks import Form

_ALL = ("float64", "float32", "bfloat16", "float16")
_HALF = ("bfloat16", "float16")
_TORCH: dict[str, Any] = {"requires": ("torch>=2.9",), "install": "pip install 'longca-core[run]'"}


# PyTorch tests its own operators on the architectures that its wheels are built for (test/test_transformers.py for
# attention). This counts as verified here, because these kernels call nothing else.


def _naive_offers() -> tuple[Offer, ...]:
    common = {
        "dtypes": _ALL,
        "backward": Backward.EXTERNAL,
        "cpu": True,
        "verified_on": ">=5.0",
        "deterministic": True,
        "unequal_head_dims": True,
        "unequal_lengths": True,
        "softcap": True,
        "metadata": "O(1)",
        "fills_buffers": False,
    }
    block_sparse = {"form": Form.BLOCK_SPARSE, "variable_blocks": True, "mask_heads": "query"}
    return tuple(Offer.model_validate({**common, **form}) for form in (block_sparse, {"form": Form.ROW_INTERVALS}))


NAIVE = KernelManifest(
    name="naive",
    family="torch",
    title="Softmax attention by the book, blockwise",
    upstream="https://arxiv.org/abs/1706.03762",
    license="Apache-2.0",
    **_TORCH,
    implementation="longca_builtin.naive:Naive",
    workspace="longca_builtin.memory:naive_workspace",
    plan_bytes="longca_builtin.memory:naive_plan",
    offers=_naive_offers(),
)


def _sdpa_offers() -> tuple[Offer, ...]:
    on_cpu = {"dtypes": _ALL, "cpu": True, "deterministic": True}
    # It has no backward of head dimensions from 200 to 224 on 8.6 to 8.9 and on 12.x (PyTorch's sdp_utils.cpp,
    # check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120).
    flash = {"dtypes": _HALF, "verified_on": ">=8.0,<12,!=8.6,!=8.7,!=8.9", "max_head_dim": 256, "head_dim_multiple": 8}
    small = {**flash, "verified_on": ">=8.6,<12.2,!=9.*,!=10.*,!=11.*", "max_head_dim": 192}
    efficient = {"dtypes": ("float32", *_HALF), "verified_on": ">=5.0", "head_dim_multiple": 8}
    unequal = {"dtypes": _HALF, "verified_on": ">=5.0", "head_dim_multiple": 8, "unequal_head_dims": True}
    # If all heads see everything, no head differs from another.
    full = {"form": Form.FULL, "unequal_lengths": True, "metadata": "O(1)", "mask_heads": "query"}
    causal = {"form": Form.CAUSAL, "metadata": "O(1)"}
    dense = {"form": Form.DENSE, "unequal_lengths": True, "metadata": "O(S²)", "mask_heads": "query"}
    # In float32 its gradients of keys were off by 1.8e-5 on an H200, and a float32 matrix product by 0.3e-5.
    dense_forward = {**dense, "backward": Backward.NONE}
    return tuple(
        Offer.model_validate({"backward": Backward.EXTERNAL, "fills_buffers": False, **form, **device})
        for device, forms in (
            (on_cpu, (full, causal, dense)),
            (flash, (full, causal)),
            (small, (full, causal)),
            (efficient, (full, causal, dense_forward)),
            ({**efficient, "dtypes": _HALF}, (dense,)),
            (unequal, (full, causal, dense)),
        )
        for form in forms
    )


SDPA = KernelManifest(
    name="sdpa",
    family="torch",
    title="PyTorch scaled dot-product attention",
    upstream="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    license="BSD-3-Clause",
    **_TORCH,
    implementation="longca_builtin.sdpa:SDPA",
    offers=_sdpa_offers(),
)


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """The oracle, and PyTorch's own kernels."""
    return NAIVE, SDPA
