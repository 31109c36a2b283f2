"""cudnn_flex: the manifest of cuDNN's open FlexAttention kernels, and the problems that it refuses. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longca import Backward, KernelManifest, Offer, Problem, Reason
from longca.masks import BlockSparseMask, Form

__all__ = ["CUDNN_FLEX", "OPEN", "refusals"]

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
    {"form": Form.BLOCK_SPARSE, "mask_heads": "query", "variable_blocks": True},
)
_HEAD_DIMS: tuple[dict[str, Any], ...] = ({"max_head_dim": 128, "head_dim_multiple": 8}, {"head_dims": (256,)})

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


def refusals(problem: Problem) -> Iterator[Reason]:
    """The reasons against a problem that an offer covers: a table of endpoints for each head that is too large."""
    mask = problem.mask
    if not isinstance(mask, BlockSparseMask) or mask.heads == 1:
        return
    entries = problem.heads_q * mask.seqlen_q * (len(mask.k_bounds) | 1)
    if entries > _MOST_ENDPOINTS:
        asked = f"{problem.heads_q} heads of this {mask.label} may have {entries} endpoints"
        yield Reason("lengths", asked, f"cudnn_flex takes at most {_MOST_ENDPOINTS}", "Try bsa.")
