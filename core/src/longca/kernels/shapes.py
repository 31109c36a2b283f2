"""Calls in the shapes of other libraries: [B, H, S, D] as in PyTorch, and documents by bounds as in flash-attn.

Both call `longca.attention`. They refuse by name what LongCA cannot compute.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from longca.errors import RequestError
from longca.kernels.attention import attend_on_device
from longca.kernels.base import check_inputs, check_mask
from longca.masks import Mask, SliceMask, build, from_cu_seqlens, from_dense, pack
from longca.masks.conversions import as_array, window_of
from longca.masks.slices import UNBOUNDED, tighten
from longca.plan_cache import PlanCache

__all__ = ["contents_of", "mask_of_bounds", "sdpa", "varlen"]

#: The masks of batches, by the keys of their masks, and the masks that sizes alone describe.
_PACKED: PlanCache[Mask] = PlanCache()
#: The masks of bounds, by the bounds and everything else.
_FROM_BOUNDS: PlanCache[SliceMask] = PlanCache(256)
#: The masks of tensors that live, with the contents of each when it was read.
_FROM_TENSORS = WeakTensorKeyDictionary()
#: Arguments of flash-attn that LongCA does not compute, and what they ask for.
_NOT_COMPUTED = {
    "dropout_p": "dropout, which changes the weights",
    "alibi_slopes": "biases of scores",
    "return_attn_probs": "weights, which LongCA never forms (return_lse=True gives the lse)",
    "block_table": "pages of a KV cache, and LongCA takes keys one document after another",
}
#: The numbers of sequences, query heads, KV heads, queries and keys of a batch.
_Sizes = tuple[int, int, int, int, int]


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | Mask | Sequence[Mask] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    mask: Tensor | Mask | Sequence[Mask] | None = None,
    scale: float | None = None,
    enable_gqa: bool = True,
    return_lse: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with the arguments of `torch.nn.functional.scaled_dot_product_attention`, differentiable.

    The sequences of a batch are computed in one call, as documents of a packed sequence. A tensor whose memory has the
    order [B, S, H, D], as most models make it, is not copied. A query that sees no key gets 0.

    Args:
        query: Queries: [B, Hq, Sq, D].
        key: Keys: [B, Hkv, Sk, D].
        value: Values: [B, Hkv, Sk, Dv].
        attn_mask: The keys that each query sees: a mask of LongCA, Sq × Sk, for all sequences, or one for each. Or a
            tensor that broadcasts to [B, Hq, Sq, Sk]: booleans, True where a query sees a key, or floats, 0 there and
            −∞ elsewhere. Calls with one tensor make its mask once, and compare its numbers with those that were read.
        dropout_p: Must be 0.
        is_causal: Whether query i sees keys 0 to i alone. Needs no mask.
        mask: Another name of `attn_mask`.
        scale: Factor on the scores. None for 1/√D.
        enable_gqa: Is not needed. There may always be fewer KV heads than query heads.
        return_lse: Return the log-sum-exp too.
        **options: `kernel`, `softcap`, `deterministic`, `allow_unverified` and `sinks` of `longca.attention`.

    Returns:
        out [B, Hq, Sq, Dv] in the query's dtype. With return_lse also lse [B, Hq, Sq], which carries no gradient.

    Raises:
        RequestError: Shapes that do not fit one another or the masks, two masks, a bias, dropout, or options of a
            strategy.
        MaskError: A tensor has more slices than `longca.masks.from_dense` makes.
        UnknownNameError: Nobody provides the kernel.
        UnsupportedError: No offer covers the problem.
    """
    _check_options("longca.sdpa", options)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise RequestError(f"{name} has the shape {list(x.shape)}; give [batch, heads, tokens, head dim]")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise RequestError(
            f"query, key and value have {query.shape[0]}, {key.shape[0]} and {value.shape[0]} sequences; give as many"
        )
    if dropout_p:
        raise RequestError(f"dropout_p is {dropout_p}, and LongCA computes no dropout; give 0")
    if (attn_mask is not None) + (mask is not None) + bool(is_causal) > 1:
        raise RequestError("two of attn_mask, mask and is_causal were given; give one, which has all that is hidden")
    given = mask if attn_mask is None else attn_mask
    batch, heads, tokens, _ = query.shape
    sizes = batch, heads, key.shape[1], tokens, key.shape[2]
    # Heads with masks of their own become sequences of one head. The query heads of a KV head follow one another.
    is_split = isinstance(given, Tensor) and given.ndim > 2 and given.shape[-3] > 1
    if is_split and options.get("sinks") is not None:
        raise RequestError("attn_mask differs by head, and sinks need one mask for all heads; give a mask of one head")
    q, k, v = (
        x.reshape(-1, 1, x.shape[3]) if is_split else x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)
    )
    out, lse = attend_on_device(q, k, v, _mask_or_key(given, is_causal, sizes), softmax_scale=scale, **options)
    if is_split:
        out, lse = out.view(*query.shape[:3], -1), lse.view(batch, heads, tokens)
    else:
        out, lse = out.unflatten(0, (batch, tokens)).transpose(1, 2), lse.unflatten(1, (batch, tokens)).transpose(0, 1)
    return (out, lse) if return_lse else out


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
    return_lse: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with the arguments of flash-attn's `flash_attn_varlen_func`, differentiable.

    Each call reads the bounds on the host, and equal bounds find their mask and its plan. Bounds on a GPU make each
    call wait for the work that is queued there. Give bounds on the CPU to let the host run ahead.

    Args:
        q: Queries: [Tq, Hq, D].
        k: Keys: [Tk, Hkv, D].
        v: Values: [Tk, Hkv, Dv].
        cu_seqlens_q: Bounds of the documents' queries, from 0: integers [documents + 1]. Tokens after the last document
            see nothing.
        cu_seqlens_k: Bounds of the documents' keys. None for those of the queries.
        max_seqlen_q: Is not needed, and not read.
        max_seqlen_k: Is not needed, and not read.
        dropout_p: Must be 0.
        softmax_scale: Factor on the scores. None for 1/√D.
        causal: Whether a query sees no later key. A document's last query is aligned with its last key.
        window_size: Tokens that a query sees to the left and to the right of itself. −1 means no bound.
        return_lse: Return the log-sum-exp too.
        **options: `kernel`, `deterministic`, `allow_unverified` and `sinks` of `longca.attention`, and `softcap`, where
            0 is no bound. `alibi_slopes`, `return_attn_probs` and `block_table` must be 0, False or None.

    Returns:
        As `longca.attention`.

    Raises:
        RequestError: A feature that LongCA does not compute, options of a strategy, shapes that do not fit, or bounds
            that reach beyond the tokens.
        MaskError: Bounds that do not start at 0, or descend.
        UnknownNameError: Nobody provides the kernel.
        UnsupportedError: No offer covers the problem.
    """
    for name in _NOT_COMPUTED:
        value = dropout_p if name == "dropout_p" else options.pop(name, None)
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise RequestError(f"{name} asks for {_NOT_COMPUTED[name]}; leave {name} away, or call flash-attn itself")
    _check_options("longca.varlen", options)
    if options.get("softcap") == 0:
        del options["softcap"]
    check_inputs(q, k, v)
    lengths = q.shape[0], k.shape[0]
    mask: Mask | Tensor
    if torch.compiler.is_compiling():
        bounds = (None if x is None else torch.as_tensor(x) for x in (cu_seqlens_q, cu_seqlens_k))
        mask = torch.ops.longca.mask_of_bounds(*bounds, causal, window_size, *lengths)
    else:
        mask = mask_of_bounds(cu_seqlens_q, cu_seqlens_k, causal, window_size, *lengths)
    out, lse = attend_on_device(q, k, v, mask, softmax_scale=softmax_scale, **options)
    return (out, lse) if return_lse else out


def _check_options(name: str, options: dict[str, Any]) -> None:
    known = ("kernel", "softcap", "deterministic", "allow_unverified", "sinks")
    for option in options:
        if option in ("strategy", "mesh", "placement", "transport"):
            raise RequestError(f"{name} runs on one device, without {option}=; under a strategy call longca.attention")
        if option not in known:
            raise RequestError(f"{name} does not know {option}=, and takes {', '.join(known)}; leave {option} away")


def _mask_or_key(given: Any, is_causal: bool, sizes: _Sizes) -> Mask | Tensor:
    """The mask of a batch. A compiler gets the mask's key, which an operator makes at each run."""
    if isinstance(given, Tensor) and given.requires_grad:
        raise RequestError("attn_mask is a bias with a gradient, and LongCA computes none; give a mask without one")
    if given is not None and not isinstance(given, Tensor):
        for each in given if isinstance(given, (list, tuple)) else (given,):
            check_mask(each)
    if not torch.compiler.is_compiling():
        return _mask_of_batch(given, is_causal, sizes)
    keys = tensor = None
    if isinstance(given, (list, tuple)):
        keys = torch.stack([torch.from_numpy(each.key_array) for each in given])
    elif isinstance(given, Mask):
        keys = torch.from_numpy(given.key_array)
    else:
        tensor = given
    key: Tensor = torch.ops.longca.mask_of_batch(keys, tensor, is_causal, sizes)
    return key


def _mask_of_batch(given: Tensor | Mask | Sequence[Mask] | None, is_causal: bool, sizes: _Sizes) -> Mask:
    """The mask of a batch. Equal calls get the same object, so that its plans are found."""
    batch, *_, queries, keys = sizes
    if isinstance(given, Tensor):
        state, known = (contents_of(given), sizes), _FROM_TENSORS.get(given)
        if known is None or known[0] != state:
            known = _FROM_TENSORS[given] = state, _mask_of_tensor(given, sizes)
        found: Mask = known[1]
        return found
    if given is None:
        given = _PACKED.get(None, (is_causal, queries, keys), lambda: _mask_of_size(is_causal, queries, keys))
    masks = [given] * batch if isinstance(given, Mask) else given
    if len(masks) != batch or not batch:
        raise RequestError(f"{len(masks)} masks were given for {batch} sequences; give one for all, or one for each")
    for index, each in enumerate(masks):
        if (each.seqlen_q, each.seqlen_k) != (queries, keys):
            raise RequestError(
                f"mask {index} is a {each.label}, and the sequences have {queries} queries and {keys} keys; give "
                "masks of that size, in which padding sees nothing"
            )
    return _PACKED.get(None, tuple(each.key for each in masks), lambda: pack(masks))


def _mask_of_size(is_causal: bool, queries: int, keys: int) -> Mask:
    if is_causal and queries != keys:  # LongCA's own pattern aligns the last query with the last key
        return SliceMask(tighten(np.array([[0, queries, 0, keys, -UNBOUNDED, 0]])), queries, keys)
    return build("causal", queries) if is_causal else build("full", queries, seqlen_k=keys)


def _mask_of_tensor(tensor: Tensor, sizes: _Sizes) -> Mask:
    batch, heads, heads_kv, queries, keys = sizes
    try:
        tensor.expand(batch, heads, queries, keys)
    except RuntimeError:
        raise RequestError(
            f"attn_mask has the shape {list(tensor.shape)}; give one that broadcasts to {[batch, heads, queries, keys]}"
        ) from None
    if tensor.is_floating_point() and not ((tensor == 0) | (tensor == -torch.inf)).all():
        raise RequestError(
            "attn_mask has biases other than 0 and −∞, and LongCA computes masks alone; remove the biases, or give "
            "booleans, True where a query sees a key"
        )
    rows = tensor[(None,) * (4 - tensor.ndim)]
    if rows.shape[1] > 1:
        rows = rows.expand(batch, heads, queries, keys).reshape(batch * heads_kv, 1, -1, keys)
    masks = [from_dense(row.expand(1, max(queries, row.shape[1]), keys)) for row in rows]
    return pack(masks * batch if len(masks) == 1 else masks)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor
def mask_of_bounds(q_bounds: Any, k_bounds: Any, causal: bool, window_size: Any, queries: int, keys: int) -> SliceMask:
    """The mask of bounds on the host or on a device, as in `varlen`.

    Equal bounds get the same mask.
    """
    window = window_of(window_size)
    of_q = as_array(q_bounds)
    of_k = None if k_bounds is None else of_q if k_bounds is q_bounds else as_array(k_bounds)
    read = tuple(None if x is None else (x.tobytes(), x.shape, x.dtype) for x in (of_q, of_k))
    about = *read, causal, window, queries, keys
    return _FROM_BOUNDS.get(None, about, lambda: _checked(of_q, of_k, causal, window, queries, keys))


class _Contents:
    """The numbers of a tensor at one moment. They are equal to the same numbers of another moment."""

    def __init__(self, x: Tensor) -> None:
        self.kept = x.detach().clone()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Contents):
            return NotImplemented
        a, b = self.kept, other.kept
        with _disable_current_modes():  # a checkpoint that computes again would compare more often
            return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)

    def __hash__(self) -> int:
        return hash(self.kept.shape)


def contents_of(x: Tensor) -> Hashable:
    """A value that is equal as long as the numbers of a tensor are, by which what was made of them is found again.

    It holds a copy on the tensor's device. A comparison on a GPU waits for the work that is queued there. The version
    of a tensor would not do: writes through `.data`, by collectives or by other libraries do not count in it.
    """
    return _Contents(x)


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


#: Operators that make masks while a compiled program runs, and return their keys. A CUDA graph would keep one mask.
_TAGS = (torch.Tag.cudagraph_unsafe,)


@torch.library.custom_op("longca::mask_of_bounds", mutates_args=(), tags=_TAGS)
def _key_of_bounds(
    q_bounds: Tensor, k_bounds: Tensor | None, causal: bool, window_size: Sequence[int], queries: int, keys: int
) -> Tensor:
    return torch.tensor(mask_of_bounds(q_bounds, k_bounds, causal, window_size, queries, keys).key)


@torch.library.custom_op("longca::mask_of_batch", mutates_args=(), tags=_TAGS)
def _key_of_batch(masks: Tensor | None, attn_mask: Tensor | None, is_causal: bool, sizes: Sequence[int]) -> Tensor:
    given: Any = attn_mask
    if masks is not None:
        given = [Mask.by_key(key) for key in masks.tolist()] if masks.ndim else Mask.by_key(int(masks))
    batch, heads, heads_kv, queries, keys = sizes
    mask = _mask_of_batch(given, is_causal, (batch, heads, heads_kv, queries, keys))
    return torch.tensor(_PACKED.get(mask, None, lambda: mask).key)  # the mask lives longer than the tensor


@_key_of_bounds.register_fake
@_key_of_batch.register_fake
def _(*_settings: Any) -> Tensor:
    return torch.empty((), dtype=torch.int64, device="cpu")
