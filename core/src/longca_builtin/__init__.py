"""The core's own kernels, provided through the same hook as the kernels of plugins."""

from longca.hookspecs import hookimpl
from longca.manifests import Backward, KernelManifest, Offer
from longca.masks import Form

_ALL = ("float64", "float32", "bfloat16", "float16")
_HALF = ("bfloat16", "float16")


def _naive_offers() -> tuple[Offer, ...]:
    common = {
        "dtypes": _ALL,
        "backward": Backward.EXTERNAL,
        "cpu": True,
        "verified_on": ">=5.0",
        "deterministic": True,
        "unequal_lengths": True,
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
    implementation="longca_builtin.naive:Naive",
    workspace="longca_builtin.memory:naive_workspace",
    plan_bytes="longca_builtin.memory:naive_plan",
    offers=_naive_offers(),
)


def _sdpa_offers() -> tuple[Offer, ...]:
    on_cpu = {"dtypes": _ALL, "cpu": True, "deterministic": True}
    flash = {"dtypes": _HALF, "verified_on": ">=8.0", "max_head_dim": 256, "head_dim_multiple": 8}
    efficient = {"dtypes": ("float32", *_HALF), "verified_on": ">=5.0", "head_dim_multiple": 8}
    # If all heads see everything, no head differs from another.
    full = {"form": Form.FULL, "unequal_lengths": True, "metadata": "O(1)", "mask_heads": "query"}
    causal = {"form": Form.CAUSAL, "metadata": "O(1)"}
    dense = {"form": Form.DENSE, "unequal_lengths": True, "metadata": "O(S²)", "mask_heads": "query"}
    return tuple(
        Offer.model_validate({"backward": Backward.EXTERNAL, "fills_buffers": False, **form, **device})
        for device, forms in (
            (on_cpu, (full, causal, dense)),
            (flash, (full, causal)),
            (efficient, (full, causal, dense)),
        )
        for form in forms
    )


SDPA = KernelManifest(
    name="sdpa",
    family="torch",
    title="PyTorch scaled dot-product attention",
    upstream="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
    license="BSD-3-Clause",
    implementation="longca_builtin.sdpa:SDPA",
    workspace="longca_builtin.memory:sdpa_workspace",
    plan_bytes="longca_builtin.memory:sdpa_plan",
    offers=_sdpa_offers(),
)


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """The oracle, and PyTorch's own kernels."""
    return NAIVE, SDPA
