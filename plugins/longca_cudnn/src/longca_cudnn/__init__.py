"""NVIDIA cuDNN's attention for LongCA: the fused graphs, and the open kernels for intervals and for blocks.

Every listing of kernels imports this module. It has the manifests and the hook, and imports neither torch nor cuDNN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longca import Backward, KernelManifest, Offer, Problem, Reason, Verdict, hookimpl
from longca.masks import Form, Mask
from longca_cudnn.bsa import CUDNN_BSA
from longca_cudnn.documents import documents_of
from longca_cudnn.flex import CUDNN_FLEX

__all__ = ["CUDNN", "CUDNN_BSA", "CUDNN_FLEX", "provide_kernel", "supports_mask"]

#: One dense document, or packed documents, which cuDNN calls ragged. If every query sees every key, all heads have the
#: same mask.
_DENSE: tuple[dict[str, Any], ...] = (
    {"form": Form.FULL, "mask_heads": "query", "metadata": "O(1)"},
    {"form": Form.CAUSAL, "metadata": "O(1)"},
    {"form": Form.WINDOW, "metadata": "O(1)"},
)
_VARLEN: tuple[dict[str, Any], ...] = ({"form": Form.VARLEN, "metadata": "O(documents)", "fills_buffers": False},)

#: Limits of the backward. Hopper takes larger head dimensions than other devices. No device takes a ragged log-sum-exp
#: with these dimensions. The other devices are those of cuDNN's support matrix (`upstream` below, Support Matrix).
_NO_RAGGED_BACKWARD = (8, 12)
_HOPPER: dict[str, Any] = {"verified_on": "==9.0", "max_head_dim": 256}
_OTHERS: dict[str, Any] = {"expected_on": ">=8.0,<13,!=9.*", "max_head_dim": 128}
_OTHERS_RAGGED: dict[str, Any] = {"expected_on": ">=10.0,<12", "max_head_dim": 128}

#: Values of another head dimension than keys.
_UNEQUAL: tuple[dict[str, Any], ...] = (
    {"verified_on": "==9.0", "max_head_dim": 128, "unequal_head_dims": True},
    {"verified_on": "==9.0", "head_dims": ((192, 128),)},
)

#: A deterministic backward takes O(S²) scratch memory for each head: 8 GiB for 64 heads of 8 K tokens. A ragged one
#: takes that of the longest document for each document, which has no bound.
_DETERMINISTIC: dict[str, Any] = {"deterministic": True, "max_seqlen": 8192}


def _offers() -> tuple[Offer, ...]:
    common = {
        "unequal_lengths": True,
        "backward": Backward.EXTERNAL,
        "dtypes": ("bfloat16", "float16"),
        "head_dim_multiple": 8,
    }
    fast = ((_DENSE, _HOPPER), (_DENSE, _OTHERS), (_VARLEN, _HOPPER), (_VARLEN, _OTHERS_RAGGED))
    rows = [*fast, *((forms, limits) for limits in _UNEQUAL for forms in (_DENSE, _VARLEN))]
    rows += [(_DENSE, {**limits, **_DETERMINISTIC}) for limits in (_HOPPER, _OTHERS)]
    return tuple(Offer.model_validate({**common, **form, **limits}) for forms, limits in rows for form in forms)


CUDNN = KernelManifest(
    name="cudnn",
    family="cudnn",
    title="cuDNN fused attention",
    upstream="https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html",
    license="LicenseRef-NVIDIA-cuDNN",
    # Versions 1.24 to 1.26 set an attribute in backwards that cuDNN 9.19, the version of torch 2.11, does not know.
    requires=("nvidia-cudnn-frontend>=1.19.1,!=1.24.*,!=1.25.*,!=1.26.*",),
    install="pip install 'longca-cudnn[cudnn]'",
    implementation="longca_cudnn.kernel:CuDNN",
    offers=_offers(),
)


@hookimpl
def provide_kernel() -> tuple[KernelManifest, ...]:
    """The manifests of cudnn, cudnn_flex and cudnn_bsa."""
    return CUDNN, CUDNN_FLEX, CUDNN_BSA


@hookimpl
def supports_mask(kernel: str, problem: Problem) -> Verdict | None:
    """Refuses problems of cudnn without a backward."""
    reasons = tuple(_needs_ragged(problem)) if kernel == CUDNN.name else ()
    return Verdict(kernel, None, reasons) if reasons else None


def _needs_ragged(problem: Problem) -> Iterator[Reason]:
    """The reason against a single document that needs a ragged graph, if there is no ragged backward."""
    mask, (major, _) = problem.mask, problem.device.capability or (0, 0)
    if problem.direction == "forward" or major not in _NO_RAGGED_BACKWARD or not isinstance(mask, Mask):
        return
    form = next((form for form in (Form.FULL, Form.CAUSAL, Form.WINDOW) if mask.admits(form)), None)
    if form is None:
        return
    documents = documents_of(mask.head(0), form)
    if documents.are_one_dense or not documents.count:
        return
    asked = f"this is a {mask.label}"
    offered = f"cudnn has no backward for a single pair, or more queries than keys in a window, on {major}.x"
    yield Reason("lengths", asked, offered, "Try fa2.")
