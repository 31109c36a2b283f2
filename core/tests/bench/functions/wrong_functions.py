"""Attention functions that are wrong in one respect each, and one that is right. They take packed tensors."""

import os

import torch
import torch.distributed as dist


def right(q, k, v, attn_mask, scale):
    """Attention by the book. A query that sees nothing gets 0."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    hidden = ~(attn_mask if attn_mask.dim() == 3 else attn_mask[None])
    scores = (torch.einsum("ihd,jhd->hij", q, k) * scale).masked_fill(hidden, -torch.inf)
    weights = scores.masked_fill(hidden.all(-1, keepdim=True), 0).softmax(-1).masked_fill(hidden, 0)
    return torch.einsum("hij,jhd->ihd", weights, v)


def joins_documents(q, k, v, scale):
    return right(q, k, v, torch.ones(len(q), len(k), dtype=torch.bool).tril(), scale)


def widens_window(q, k, v, window, scale):
    ahead = torch.arange(len(k)) - torch.arange(len(q))[:, None] - (len(k) - len(q))
    return right(q, k, v, (ahead <= 0) & (ahead >= -window - 1), scale)


def aligns_top_left(q, k, v, scale):
    return right(q, k, v, torch.ones(len(q), len(k), dtype=torch.bool).tril(), scale)


def hides_own_key(q, k, v, scale):
    return right(q, k, v, torch.ones(len(q), len(k), dtype=torch.bool).tril(-1), scale)


def scales_by_width(q, k, v, attn_mask):
    return right(q, k, v, attn_mask, 1 / q.shape[-1])


def mixes_heads(q, k, v, attn_mask, scale):
    groups = q.shape[1] // k.shape[1]
    return right(q, k.repeat(1, groups, 1), v.repeat(1, groups, 1), attn_mask, scale)


def leaves_nan(q, k, v, attn_mask, scale):
    out = right(q, k, v, attn_mask, scale)
    return torch.where(attn_mask.any(-1)[:, None, None], out, torch.nan)


def averages_nothing(q, k, v, attn_mask, scale):
    blind = ~attn_mask.any(-1, keepdim=True)
    return right(q, k, v, attn_mask | blind, scale)


def misreads_strides(q, k, v, attn_mask, scale):
    def as_a_pointer(x):
        return torch.as_strided(x, x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1))

    return right(*map(as_a_pointer, (q, k, v)), attn_mask, scale)


def ignores_mask(q, k, v, attn_mask, scale):
    return right(q, k, v, torch.ones_like(attn_mask), scale)


class _HalvesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def halves_dv(q, k, v, attn_mask, scale):
    return right(q, k, _HalvesGradient.apply(v), attn_mask, scale)


def with_lse(q, k, v, attn_mask, scale):
    scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)) * scale
    return right(q, k, v, attn_mask, scale), scores.masked_fill(~attn_mask, -torch.inf).logsumexp(-1)


def with_lse_bhsd(q, k, v, attn_mask, scale):
    out, lse = with_lse(*(x[0].transpose(0, 1) for x in (q, k, v)), attn_mask, scale)
    return out.transpose(0, 1)[None], lse[None]


def repeats_its_lse(q, k, v, attn_mask, scale):
    out, lse = with_lse(q, k, v, attn_mask, scale)
    return out, lse + 0.01


def ignores_window(q, k, v, is_causal, scale):
    return right(q, k, v, torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q)), scale)


def computes_in_half(q, k, v, attn_mask, scale):
    return right(q.bfloat16(), k.bfloat16(), v.bfloat16(), attn_mask, scale).float()


def sums_without_maximum(q, k, v, attn_mask, scale):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    weights = (scores - (scores.exp() * attn_mask).sum(-1, keepdim=True).log()).exp() * attn_mask
    return torch.einsum("hij,jhd->ihd", weights, v)


KEPT = {}


def keeps_mask(q, k, v, attn_mask, scale):
    return right(q, k, v, KEPT.setdefault(len(q), attn_mask), scale)


class _Gathered(torch.autograd.Function):
    """The shards of all ranks, one after another. The backward sums the ranks' gradients."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group, ctx.tokens = group, len(x)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad.split(ctx.tokens)[dist.get_rank(ctx.group)], None


def _in_order(x, mask, group, tokens):
    """Gathered keys in the order of the sequence."""
    whole = _Gathered.apply(x, group)
    return whole if tokens is None else whole[tokens.argsort()]


def shares(q, k, v, attn_mask, scale, group, tokens=None):
    return right(q, *(_in_order(x, attn_mask, group, tokens) for x in (k, v)), attn_mask, scale)


def zigzag_tokens(size, tokens):
    parts = torch.arange(tokens).chunk(2 * size)
    return torch.cat([torch.cat((parts[rank], parts[-1 - rank])) for rank in range(size)])


def shares_zigzag(q, k, v, attn_mask, scale, group):
    size = dist.get_world_size(group)
    return shares(q, k, v, attn_mask, scale, group, zigzag_tokens(size, size * len(q)))


def striped(mask, ranks):
    return [range(rank, mask.seqlen_q, ranks) for rank in range(ranks)]


def shares_striped(q, k, v, attn_mask, scale, group):
    ranks = dist.get_world_size(group)
    tokens = torch.cat([torch.arange(rank, ranks * len(q), ranks) for rank in range(ranks)])
    return shares(q, k, v, attn_mask, scale, group, tokens)


class _SummedTwice(_Gathered):
    @staticmethod
    def backward(ctx, grad):
        return _Gathered.backward(ctx, 2 * grad)


def sums_gradients_twice(q, k, v, attn_mask, scale, group):
    return right(q, *(_SummedTwice.apply(x, group) for x in (k, v)), attn_mask, scale)


def takes_first_rows(q, k, v, mask, scale, group):
    return shares(q, k, v, torch.from_numpy(mask.dense())[: len(q)], scale, group)


def takes_rank_of_world(q, k, v, is_causal, scale, group):
    at = torch.arange(len(q)) + dist.get_rank() * len(q)
    ahead = torch.arange(len(q) * dist.get_world_size(group)) - at[:, None]
    return shares(q, k, v, ahead <= 0 if is_causal else ahead == ahead, scale, group)


def raises_on_last(q, k, v, attn_mask, scale, group):
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        raise ValueError("an odd rank")
    return shares(q, k, v, attn_mask, scale, group)


def mixes_batch(q, k, v, attn_mask):
    """[B, H, S, D]: every sequence gets the first one's keys."""
    k, v = (x[:1].expand_as(x) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, enable_gqa=True)


def sdpa(q, k, v, attn_mask):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, enable_gqa=True)


def sdpa_bshd(q, k, v, attn_mask):
    return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask).transpose(1, 2)


def views_heads(q, k, v, attn_mask, scale):
    """It raises on strided tensors."""
    return right(q.view(-1).view(q.shape), k, v, attn_mask, scale)


def hangs(q, k, v, attn_mask):
    while True:
        pass


def exits(q, k, v, attn_mask):
    os._exit(0)


def detaches(q, k, v, attn_mask, scale):
    return right(q.detach(), k, v, attn_mask, scale)


def forward_only(q, k, v, attn_mask, scale):
    with torch.no_grad():
        return right(q, k, v, attn_mask, scale)


def returns_list(q, k, v, attn_mask):
    return [1, 2]


def returns_flat(q, k, v, attn_mask, scale):
    return right(q, k, v, attn_mask, scale).flatten(1)


def returns_wide(q, k, v, attn_mask, scale):
    return right(q, k, v, attn_mask, scale).double()


def raises(q, k, v, attn_mask):
    raise RuntimeError("no such device")


def exits_politely(q, k, v, attn_mask):
    raise SystemExit(3)


def writes_to_q(q, k, v, attn_mask, scale):
    out = right(q, k, v, attn_mask, scale)
    with torch.no_grad():
        q.mul_(2)
    return out


def needs_bias(q, k, v, bias):
    return q


def takes_two(q, k):
    return q


def says_nothing(q, k, v):
    return q


def factor_first(factor, q, k, v, attn_mask, scale):
    return right(q, k, v, attn_mask, factor * scale)


class Attention:
    """Its method needs an object."""

    def attend(self, q, k, v, attn_mask, scale):
        return right(q, k, v, attn_mask, scale)


NUMBER = 3
