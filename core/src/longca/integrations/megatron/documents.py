"""Documents of a batch: their bounds, their mask, and the layout whose shards are Megatron's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError
from longca.manifests import Layout
from longca.masks import Mask, build, from_cu_seqlens
from longca.masks.conversions import as_array
from longca.parallel.layouts import layout
from longca.plan_cache import PlanCache

__all__ = ["bounds_of", "mask_of", "mesh_of", "zigzag_layout"]

#: Bounds of documents: of the documents themselves, and of the places that they have with their padding.
_Bounds = tuple[tuple[int, ...], tuple[int, ...]]

#: The latest masks and meshes. All layers and all steps with the same bounds share them.
_MASKS: PlanCache[Mask] = PlanCache(64)
_MESHES: PlanCache[DeviceMesh] = PlanCache(8)


def zigzag_layout(
    mask: Mask,
    bounds: tuple[int, ...],
    strategy: str,
    mesh: DeviceMesh | dict[str, int],
    heads: tuple[int, int],
    **options: Any,
) -> Layout:
    """The layout whose shards are Megatron's: of 2n chunks of each document, one from either end to each of n ranks.

    Args:
        mask: The mask of all tokens.
        bounds: Bounds of the documents with their padding, from 0 to the number of tokens.
        strategy: `ring_p2p` or `ring_all_gather`.
        mesh: As in `longca.layout`.
        heads: As in `longca.layout`.
        **options: `head_dim`, `dtype`, `kernel` and `device` of `longca.layout`.

    Raises:
        RequestError: A document that does not divide into 2n chunks, or tokens after the last document.
    """
    ranks = mesh.size() if isinstance(mesh, DeviceMesh) else next(iter(mesh.values()))
    lengths = [stop - start for start, stop in pairwise(bounds) if stop > start]
    odd = next((length for length in lengths if length % (2 * ranks)), None)
    if odd is not None or bounds[-1] != mask.seqlen_q:
        what = f"one has {odd} tokens" if odd else f"they end at token {bounds[-1]} of {mask.seqlen_q}"
        raise RequestError(
            f"Megatron's {ranks} context-parallel ranks hold 2 chunks of each document, and {what}; pad each document "
            f"to a multiple of {2 * ranks} tokens, and give cu_seqlens_q_padded"
        )
    asked = {"strategy": strategy, "mesh": mesh, "heads": heads, **options}
    if len(lengths) == 1:
        return layout(mask, placement="zigzag", **asked)
    # The first mask has the documents with their padding, so the placement that both masks share is within these.
    frame = build("causal_document", mask.seqlen_q, documents=lengths)
    return layout([(frame, 1.0), (mask, 1.0)], placement="zigzag_document", **asked)[1]


def bounds_of(packed: Any) -> _Bounds:
    """The bounds of packed documents, without and with padding.

    Each layer reads them, because nothing tells whether the numbers of a tensor have changed. On a GPU it waits for the
    work that is queued there, once for each tensor, as Megatron's own unfused rotary embedding does.
    """
    tensors = [packed.cu_seqlens_q, packed.cu_seqlens_kv, packed.cu_seqlens_q_padded, packed.cu_seqlens_kv_padded]
    read = {id(x): tuple(as_array(x).tolist()) for x in tensors if x is not None}
    queries, keys, padded, padded_keys = (() if x is None else read[id(x)] for x in tensors)
    padded = padded or queries
    if keys not in ((), queries) or padded_keys not in ((), padded) or len(padded) != len(queries):
        raise RequestError("packed_seq_params has other bounds for keys than for queries; self-attention has one")
    return queries, padded


def mask_of(
    documents: tuple[int, ...], padded: tuple[int, ...], tokens: int, causal: bool, window: tuple[int, int]
) -> Mask:
    """The mask of a batch. The padding after a document is a document of its own, so that nothing else sees it."""

    def make() -> Mask:
        if documents == padded == (0, tokens) and window == (-1, -1):
            return build("causal" if causal else "full", tokens)
        bounds = np.array(padded)
        if documents != padded:
            bounds = np.r_[np.stack([bounds[:-1], bounds[:-1] + np.diff(documents)], axis=1).ravel(), bounds[-1]]
        return from_cu_seqlens(bounds, causal=causal, window_size=window, seqlen=tokens)

    return _MASKS.get(None, (documents, padded, tokens, causal, window), make)


def mesh_of(group: ProcessGroup, device_type: str) -> DeviceMesh:
    """The mesh of a context-parallel group."""

    def make() -> DeviceMesh:
        return DeviceMesh.from_group(group, device_type, mesh_dim_names=("cp",))

    return _MESHES.get(None, (group, device_type), make)
