"""FlashInfer's block-sparse attention for LongCA: the problems that it takes, and the devices on which it runs.

The entry point names this module. It imports neither torch nor FlashInfer.
"""

from __future__ import annotations

from typing import Any

from longca import KernelManifest, Offer, hookimpl
from longca.manifests.sizes import Size
from longca.masks import Form

__all__ = ["FLASHINFER_FA2", "FLASHINFER_FA3", "provide_kernel"]


def _manifest(
    name: str, title: str, implementation: str, expected_on: str | None, *, rough_lse: bool
) -> KernelManifest:
    """The manifest of one of FlashInfer's backends. The arguments are their only differences."""
    offer: dict[str, Any] = {
        "form": Form.BLOCK_SPARSE,
        "variable_blocks": True,
        "mask_heads": "kv",
        "unequal_lengths": True,
        "dtypes": ("bfloat16", "float16"),
        "head_dims": (64, 128, 256),
        # FlashInfer would count larger ones in 32 bits and miscount.
        "max_sizes": ((Size.ELEMENTS, 2**31 - 1), (Size.KEYS, 2**31 - 1)),
        "verified_on": "==9.0",
        "expected_on": expected_on,
        "deterministic": True,
        # The lists have keys, not blocks: one number for every key that a query block sees.
        "metadata": "O(S²)",
        "fills_buffers": False,
        "rough_lse": rough_lse,
    }
    return KernelManifest(
        name=name,
        family="flashinfer",
        title=title,
        upstream="https://arxiv.org/abs/2501.01005",
        license="Apache-2.0",
        requires=("flashinfer-python>=0.6.3,<=0.7.2.post1",),
        install="pip install 'longca-flashinfer[flashinfer]'",
        implementation=f"longca_flashinfer.kernel:{implementation}",
        # Nobody ran the soft cap of its kernels here.
        offers=(
            Offer.model_validate(offer),
            Offer.model_validate({**offer, "softcap": True, "verified_on": None, "expected_on": "==9.0"}),
        ),
    )


#: The sums are matrix products of weights in the inputs' dtype. FlashInfer's README lists GPUs from 7.5 to 12.1, and
#: bfloat16 needs 8.0.
FLASHINFER_FA2 = _manifest(
    "flashinfer_fa2", "FlashInfer on FlashAttention-2", "FlashInferFA2", ">=8.0,<12.2", rough_lse=True
)
FLASHINFER_FA3 = _manifest("flashinfer_fa3", "FlashInfer on FlashAttention-3", "FlashInferFA3", None, rough_lse=False)


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """The manifests of both backends of FlashInfer."""
    return FLASHINFER_FA2, FLASHINFER_FA3
