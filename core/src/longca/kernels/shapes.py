"""Calls in the shapes of other libraries: [B, H, S, D] as in PyTorch, and documents by bounds as in flash-attn.

Both call `longca.attention`. They refuse by name what LongCA cannot compute.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longca.errors import RequestError
from longca.kernels.attention import attention
from longca.kernels.base import check_inputs, check_mask
from longca.masks import Mask, SliceMask, from_cu_seqlens, pack
from longca.masks.conversions import window_of
from longca.plan_cache import PlanCache

__all__ = ["contents_of", "mask_of_bounds", "sdpa", "varlen"]

#: The masks of batches, by the keys of their masks.
_PACKED: PlanCache[Mask] = PlanCache(64)
#: The masks of bounds that live, by the tensor of the queries' bounds and everything else.
_FROM_BOUNDS = WeakTensorKeyDictionary()


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Sequence[Mask],
    *,
    scale: float | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention in the shapes of `torch.nn.functional.scaled_dot_product_attention`, differentiable.

    The sequences of a batch are computed in one call, as documents of a packed sequence. A tensor whose memory has the
    order [B, S, H, D], as most models make it, is not copied.

    Args:
        query: Queries: [B, Hq, Sq, D].
        key: Keys: [B, Hkv, Sk, D].
        value: Values: [B, Hkv, Sk, D].
        mask: The keys that each query of a sequence sees, Sq × Sk: one mask for all sequences, or one for each.
        scale: Factor on the scores. None for 1/√D.
        return_lse: Return the log-sum-exp too.
        **options: `kernel`, `deterministic` and `allow_unverified` of `longca.attention`.

    Returns:
        out [B, Hq, Sq, D] in the query's dtype. With return_lse also lse [B, Hq, Sq], which carries no gradient.

    Raises:
        RequestError: Shapes that do not fit one another or the masks, or options of a strategy.
        UnknownNameError: Nobody provides the kernel.
        UnsupportedError: No offer covers the problem.
    """
    _check_options("longca.sdpa", options, ("kernel", "deterministic", "allow_unverified"))
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise RequestError(f"{name} has the shape {list(x.shape)}; give [batch, heads, tokens, head dim]")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise RequestError(
            f"query, key and value have {query.shape[0]}, {key.shape[0]} and {value.shape[0]} sequences; give as many"
        )
    batch, tokens = query.shape[0], query.shape[2]
    packed = _packed(mask, batch, tokens, key.shape[2])
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    out, lse = attention(
        q,
        k,
        v,
        packed,
        softmax_scale=scale,
        return_lse=True,
        **options,
    )
    out = out.unflatten(0, (batch, tokens)).transpose(1, 2)
    return (out, lse.unflatten(1, (batch, tokens)).transpose(0, 1)) if return_lse else out


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    *,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with the arguments of flash-attn's `flash_attn_varlen_func`, differentiable.

    The bounds are read on the host, which waits for a GPU once for each tensor of bounds. Later calls with the same
    tensor find its mask and its plan, so give all layers the same tensor.

    Args:
        q: Queries: [Tq, Hq, D].
        k: Keys: [Tk, Hkv, D].
        v: Values: [Tk, Hkv, D].
        cu_seqlens_q: Bounds of the documents' queries, from 0: integers [documents + 1]. Tokens after the last document
            see nothing.
        cu_seqlens_k: Bounds of the documents' keys. None for those of the queries.
        max_seqlen_q: Is not needed, and not read.
        max_seqlen_k: Is not needed, and not read.
        dropout_p: Must be 0.
        softmax_scale: Factor on the scores. None for 1/√D.
        causal: Whether a query sees no later key. A document's last query is aligned with its last key.
        window_size: Tokens that a query sees to the left and to the right of itself. −1 means no bound.
        softcap: Must be 0.
        alibi_slopes: Must be None.
        block_table: Must be None.
        **options: `kernel`, `deterministic`, `allow_unverified` and `return_lse` of `longca.attention`.

    Returns:
        As `longca.attention`.

    Raises:
        RequestError: A feature that LongCA does not compute, options of a strategy, shapes that do not fit, or bounds
            that reach beyond the tokens.
        MaskError: Bounds that do not start at 0, or descend.
        UnknownNameError: Nobody provides the kernel.
        UnsupportedError: No offer covers the problem.
    """
    asked = {"dropout_p": dropout_p, "softcap": softcap, "alibi_slopes": alibi_slopes, "block_table": block_table}
    for name, value in asked.items():
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise RequestError(
                f"{name} changes the scores or the weights, and LongCA computes neither. Leave {name} away, or call "
                "flash-attn itself"
            )
    _check_options("longca.varlen", options, ("kernel", "deterministic", "allow_unverified", "return_lse"))
    check_inputs(q, k, v)
    mask = mask_of_bounds(cu_seqlens_q, cu_seqlens_k, causal, window_size, q.shape[0], k.shape[0])
    return attention(q, k, v, mask, softmax_scale=softmax_scale, **options)


def _check_options(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option in options:
        if option in ("strategy", "mesh", "placement", "transport"):
            raise RequestError(f"{name} runs on one device, without {option}=; under a strategy call longca.attention")
        if option not in known:
            raise RequestError(f"{name} does not know {option}=, and takes {', '.join(known)}; leave {option} away")


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor
def _packed(mask: Mask | Sequence[Mask], batch: int, seqlen_q: int, seqlen_k: int) -> Mask:
    """The mask of a batch. Equal calls get the same object, so that its plans are found."""
    masks: list[Any] = list(mask) if isinstance(mask, (list, tuple)) else [mask] * batch
    if len(masks) != batch or not batch:
        raise RequestError(f"{len(masks)} masks were given for {batch} sequences; give one for all, or one for each")
    for index, each in enumerate(masks):
        check_mask(each)
        if (each.seqlen_q, each.seqlen_k) != (seqlen_q, seqlen_k):
            raise RequestError(
                f"mask {index} is a {each.label}, and the sequences have {seqlen_q} queries and {seqlen_k} keys; give "
                "masks of that size, in which padding sees nothing"
            )
    return _PACKED.get(None, tuple(each.key for each in masks), lambda: pack(masks))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor
def mask_of_bounds(q_bounds: Any, k_bounds: Any, causal: bool, window_size: Any, queries: int, keys: int) -> SliceMask:
    """The mask of bounds on the host or on a device. A tensor gets the same mask again until it changes
    (`contents_of`).

    Args:
        q_bounds: Bounds of the documents' queries, as in `varlen`.
        k_bounds: Bounds of the documents' keys, or None for the same.
        causal: As in `varlen`.
        window_size: As in `varlen`.
        queries: Number of queries.
        keys: Number of keys.

    Raises:
        RequestError: The bounds reach beyond the tokens, or those of the keys are missing.
        MaskError: The bounds or the window are none.
    """
    window = window_of(window_size)
    tensors = [x for x in (q_bounds, k_bounds) if x is not None]
    if not all(isinstance(x, Tensor) for x in tensors):
        return _checked(q_bounds, k_bounds, causal, window, queries, keys)
    known = _FROM_BOUNDS.setdefault(q_bounds, {})
    about = causal, window, queries, keys, None if k_bounds is None else id(k_bounds)
    contents = [contents_of(x) for x in tensors]
    mask, seen, of = known.get(about, (None, None, None))
    # A tensor of key bounds may be gone, and another one may have its id.
    if seen != contents or (k_bounds is not None and of() is not k_bounds):
        mask = _checked(q_bounds, k_bounds, causal, window, queries, keys)
        known[about] = mask, contents, None if k_bounds is None else weakref.ref(k_bounds)
    return cast(SliceMask, mask)


def contents_of(x: Tensor) -> Hashable:
    """A value that changes with the numbers of a tensor, by which what was made of them is found again.

    It is a digest of the numbers of a tensor on a CPU. Reading a GPU would wait for it, so it is the version of a
    tensor there. A version does not count writes through `.data` or through the memory of another library. Give a new
    tensor after such a write. A tensor of inference mode on a GPU has no version, and is new each time.
    """
    if x.is_cpu:
        return hashlib.blake2b(x.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()).digest()
    return object() if x.is_inference() else x._version


def _checked(q_bounds: Any, k_bounds: Any, causal: bool, window: tuple[int, int], queries: int, keys: int) -> SliceMask:
    if k_bounds is None and queries != keys:
        raise RequestError(f"q has {queries} tokens and k {keys}; give cu_seqlens_k, the bounds of the keys")
    mask = from_cu_seqlens(q_bounds, k_bounds, causal=causal, window_size=window)
    if mask.seqlen_q > queries or mask.seqlen_k > keys:
        raise RequestError(
            f"the bounds end at query {mask.seqlen_q} and key {mask.seqlen_k}, and q has {queries} tokens and k {keys}"
            "; give bounds within them, or the tensors of these bounds"
        )
    return SliceMask(mask.array, queries, keys) if (mask.seqlen_q, mask.seqlen_k) != (queries, keys) else mask
