"""choose_blocks: the key blocks that each query block keeps, by the scores of pooled queries and keys, or at random.

Each block of queries and of keys is represented by its mean. Each query block keeps the key blocks with the highest
products. Video Sparse Attention (arXiv 2505.13389, its coarse stage) and MoBA (arXiv 2502.13189, equations 5 and 6) do
so. LongCA-bench (arXiv 2510.17896) draws its masks by random scores. The work runs on the tensors' device. Only the
packed bitmap comes to the host.

Ranks that hold some of the tokens each choose together (`longca.parallel.shared_choice`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.errors import MaskError, UnknownNameError
from longca.kernels.base import check_inputs
from longca.manifests import Layout
from longca.masks import FACTORS, BlockSparseMask
from longca.masks.bounds import check_bounds, kept_count, uniform_bounds
from longca.parallel.shared_choice import SharedChoice

__all__ = ["Per", "Scores", "choose_blocks"]

Scores = Literal["pooled", "random"]
Per = Literal["kv", "query", "shared"]

_BothBounds = tuple[NDArray[np.int64], NDArray[np.int64]]

_CHUNK = 2**26  # scores of several heads that are computed together


def choose_blocks(
    q: Tensor,
    k: Tensor,
    *,
    block: int = 64,
    q_bounds: Sequence[int] | None = None,
    k_bounds: Sequence[int] | None = None,
    kept: float = 0.5,
    scores: Scores = "pooled",
    per: Per = "kv",
    seed: int = 0,
    layout: Layout | None = None,
    mesh: DeviceMesh | None = None,
) -> BlockSparseMask:
    """Chooses the blocks of a block-sparse mask: for each query block the key blocks with the highest scores.

    The choice is not differentiable. The first of several key blocks with equal scores wins.

    With a layout and a mesh, each rank gives its shards and gets the same mask of all tokens. The call is collective,
    with the same settings on all ranks. The placements `contiguous` and `zigzag` depend on the bounds of the blocks
    alone, so that tokens stay on their ranks while the choice changes.

    Args:
        q: Queries: [Tq, Hq, D]. With a layout, the queries of this rank.
        k: Keys: [Tk, Hkv, D]. With a layout, the keys of this rank.
        block: Tokens of a block. The last block may be shorter.
        q_bounds: Bounds of the query blocks, from 0 to Tq, instead of blocks of one size.
        k_bounds: Bounds of the key blocks, from 0 to Tk, instead of blocks of one size.
        kept: Share of the key blocks that each query block keeps, rounded down, but at least one block.
        scores: `pooled` for products of the blocks' means, `random` for random scores.
        per: The heads with masks of their own. `kv`: each KV head has one, scored by the mean query of its group.
            `query`: each query head has one. `shared`: all heads share one, scored by the sum over KV heads.
        seed: Seed of random scores. Equal seeds on one kind of device give equal masks.
        layout: The layout that assigns tokens to ranks, for example of a mask that keeps every block.
        mesh: The device mesh of the layout's strategy. Required with a layout.

    Returns:
        A mask for `longca.attention`.

    Raises:
        RequestError: Shapes, dtypes or devices do not fit. Or the layout, the mesh and the shards do not.
        MaskError: A block size, bounds, a share or a seed does not fit.
        UnknownNameError: `scores` or `per` has an unknown value.
    """
    q, k = q.detach(), k.detach()
    chosen: BlockSparseMask = _chosen(q, k, block, q_bounds, k_bounds, kept, scores, per, seed, layout, mesh)
    return chosen


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a mask is no tensor: compilers take it as it is
def _chosen(
    q: Tensor,
    k: Tensor,
    block: int,
    q_bounds: Sequence[int] | None,
    k_bounds: Sequence[int] | None,
    kept: float,
    scores: Scores,
    per: Per,
    seed: int,
    layout: Layout | None,
    mesh: DeviceMesh | None,
) -> BlockSparseMask:
    check_inputs(q, k, k)
    for name, given, known in (("scores", scores, get_args(Scores)), ("per", per, get_args(Per))):
        if given not in known:
            raise UnknownNameError(f"choice of {name}", given, known)
    shared = None if layout is None and mesh is None else SharedChoice(layout, mesh)
    if shared is not None:
        shared.check(q, k)
    tokens_q, tokens_k = (len(q), len(k)) if shared is None else (shared.num_tokens,) * 2
    kept, seed = FACTORS["kept"].check(kept, tokens_k), FACTORS["seed"].check(seed, tokens_k)
    bounds = _bounds(q_bounds, tokens_q, block, "query"), _bounds(k_bounds, tokens_k, block, "key")
    heads = {"kv": k.shape[1], "query": q.shape[1], "shared": 1}[per]
    shape = heads, len(bounds[0]) - 1, len(bounds[1]) - 1
    scored = _scored(q, k, bounds, shape, scores, per, seed, shared)
    none = torch.zeros((0, shape[1], -(-shape[2] // 8)), dtype=torch.uint8, device=q.device)
    bits = torch.cat([none, *(_packed(_highest(part, kept_count(kept, shape[2]))) for part in scored)])
    bits = bits if shared is None else shared.bits(bits, heads)
    return BlockSparseMask.from_bits(bits.cpu().numpy(), *bounds)


def _scored(
    q: Tensor,
    k: Tensor,
    bounds: _BothBounds,
    shape: tuple[int, int, int],
    scores: Scores,
    per: Per,
    seed: int,
    shared: SharedChoice | None,
) -> Iterator[Tensor]:
    """The scores of this rank's heads, some at a time: float32 [heads, query blocks, key blocks]."""
    mine = range(shape[0]) if shared is None else shared.heads(shape[0])
    if scores == "random":
        return islice(_random(shape, q.device, seed), mine.start, mine.stop)
    mean = _means if shared is None else partial(shared.means, mean=_means)
    return _pooled(mean(q, bounds[0]), mean(k, bounds[1]), per, mine)


def _bounds(given: Sequence[int] | None, tokens: int, block: int, axis: str) -> NDArray[np.int64]:
    if given is None:
        if not tokens:
            raise MaskError(f"there are no {axis} tokens to choose blocks of")
        return uniform_bounds(tokens, FACTORS["block"].check(block, tokens))
    bounds = check_bounds(given, axis)
    if bounds[-1] != tokens or not tokens:
        raise MaskError(
            f"{axis} block bounds end at {bounds[-1]}, but there are {tokens} tokens; end at the last token"
        )
    return bounds


def _pooled(means_q: Tensor, means_k: Tensor, per: Per, heads: range) -> Iterator[Tensor]:
    """Products of mean queries [Hq, query blocks, D] and mean keys [Hkv, key blocks, D], for some heads of `per`.

    Some heads come at a time: float32 [heads, query blocks, key blocks].
    """
    group = len(means_q) // len(means_k)
    if per == "query":
        means_k = means_k.repeat_interleave(group, 0)
    else:
        means_q = means_q.unflatten(0, (-1, group)).mean(1)
    if per == "shared":  # one head whose vectors are all heads' in a row
        means_q, means_k = (x.transpose(0, 1).flatten(1)[None] for x in (means_q, means_k))
    means_q, means_k = (x[heads.start : heads.stop] for x in (means_q, means_k))
    step = max(1, _CHUNK // (means_q.shape[1] * means_k.shape[1]))
    for heads_q, heads_k in zip(means_q.split(step), means_k.split(step), strict=True):
        # NaN ranks last. A row of NaNs still sees blocks, so the error shows in the output.
        scores = heads_q @ heads_k.mT
        yield scores.masked_fill_(scores.isnan(), -torch.inf)


def _means(x: Tensor, bounds: NDArray[np.int64]) -> Tensor:
    """The mean of each block of tokens: [T, H, D] → float32 [H, blocks, D]."""
    sizes = np.diff(bounds)
    if not len(sizes):
        return x.new_zeros((x.shape[1], 0, x.shape[2]), dtype=torch.float32)
    size = int(sizes[0])
    if (sizes[:-1] == size).all() and sizes[-1] <= size:
        whole = len(x) // size
        means = x[: whole * size].unflatten(0, (whole, size)).mean(1, dtype=torch.float32)
        tail = [x[whole * size :].mean(0, dtype=torch.float32)[None]] if len(x) % size else []
        return torch.cat([means, *tail]).transpose(0, 1)
    lengths = torch.from_numpy(sizes).to(x.device)
    # A head at a time, because it is widened. The lengths were checked.
    heads = (x[:, head].float() for head in range(x.shape[1]))
    return torch.stack([torch.segment_reduce(head, "mean", lengths=lengths, unsafe=True) for head in heads])


def _random(shape: tuple[int, int, int], device: torch.device, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    for _ in range(shape[0]):
        yield torch.rand((1, *shape[1:]), generator=generator, device=device)


def _highest(scores: Tensor, count: int) -> Tensor:
    """Whether each score is among the `count` highest of its row. The first of equal scores wins: bool, same shape."""
    # Only the values count, because the choice of topk among equal ones differs between devices.
    least = scores.topk(count, sorted=False).values.amin(-1, keepdim=True)
    above, level = scores > least, scores == least
    room = count - above.sum(-1, keepdim=True)
    return above | (level & (level.cumsum(-1, dtype=torch.int32) <= room))


def _packed(kept: Tensor) -> Tensor:
    """Booleans [.., columns] packed like `numpy.packbits`: uint8 [.., bytes]."""
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=kept.device)
    padded = torch.nn.functional.pad(kept, (0, -kept.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (padded * places).sum(-1, dtype=torch.uint8)
