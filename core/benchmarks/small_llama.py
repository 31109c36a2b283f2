"""A small Llama-shaped model and its packed documents, for `training_step.py`.

Shapes: q [S, Hq, D], k and v [S, Hkv, D], x [S, width].
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from longca import masks

#: Attention of [S, H, D] under a step's mask.
Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]


class Block(nn.Module):
    """Attention and a feed-forward layer, each with RMSNorm before it."""

    def __init__(self, asked: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        width, dim, self.attend = asked.width, asked.head_dim, attend
        self.heads = list(map(int, asked.heads.split(":")))
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, (self.heads[0] + 2 * self.heads[1]) * dim, bias=False)
        self.out = nn.Linear(self.heads[0] * dim, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * asked.inner, bias=False), nn.Linear(asked.inner, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Any) -> Tensor:
        """The block's output."""
        heads_q, heads_kv = self.heads
        qkv = self.qkv(self.before(x)).unflatten(1, (heads_q + 2 * heads_kv, -1))
        q, k, v = qkv.split([heads_q, heads_kv, heads_kv], dim=1)
        x = x + self.out(self.attend(rotated(q, rotation), rotated(k, rotation), v, mask).flatten(1))
        gate, value = self.up(self.between(x)).chunk(2, dim=1)
        return x + self.down(silu(gate) * value)


class Model(nn.Module):
    """Embeddings, blocks, and the loss of the next tokens.

    Args:
        asked: The sizes: `layers`, `width`, `inner`, `heads`, `head_dim` and `vocabulary`.
        attend: Attention of q, k and v under the mask of a step.
    """

    def __init__(self, asked: argparse.Namespace, attend: Attend) -> None:
        super().__init__()
        self.embed, self.head_dim = nn.Embedding(asked.vocabulary, asked.width), asked.head_dim
        self.blocks = nn.ModuleList(Block(asked, attend) for _ in range(asked.layers))
        self.norm = nn.RMSNorm(asked.width)
        self.logits = nn.Linear(asked.width, asked.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor, positions: Tensor, mask: Any) -> Tensor:
        """The mean loss."""
        frequencies = 10000.0 ** (-torch.arange(0, self.head_dim, 2, device=tokens.device) / self.head_dim)
        angles = positions[:, None, None] * frequencies
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, (angles.cos(), angles.sin()), mask)
        return cross_entropy(self.logits(self.norm(x)).float(), targets)


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embeddings of [S, H, D]."""
    (first, second), (cos, sin) = x.float().chunk(2, dim=-1), rotation
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1).to(x.dtype)


def drawn(step: int, asked: argparse.Namespace) -> masks.Mask:
    """The mask of a step's documents."""
    about = {"lengths": asked.lengths, "max_share": asked.max_share, "seed": step}
    return masks.sample("causal_document", asked.seqlen, **about)


@dataclass(frozen=True)
class Batch:
    """Packed documents. Each token is the last one plus 3, so that there is something to learn.

    Attributes:
        lengths: Tokens of each document.
        tokens: The tokens: [S].
        targets: The next tokens: [S].
        positions: Positions in their documents: [S].
        documents: The document of each token: [S].
    """

    lengths: tuple[int, ...]
    tokens: Tensor
    targets: Tensor
    positions: Tensor
    documents: Tensor

    @classmethod
    def draw(cls, step: int, asked: argparse.Namespace, device: torch.device) -> Batch:
        """The batch of a step."""
        lengths = torch.tensor(drawn(step, asked).factors["documents"])
        starts = torch.randint(asked.vocabulary, (len(lengths),), generator=torch.Generator().manual_seed(step))
        positions = torch.cat([torch.arange(n) for n in lengths])
        tokens = (starts.repeat_interleave(lengths) + 3 * positions) % asked.vocabulary
        documents = torch.arange(len(lengths)).repeat_interleave(lengths)
        on_device = (x.to(device) for x in (tokens, (tokens + 3) % asked.vocabulary, positions, documents))
        return cls(tuple(lengths.tolist()), *on_device)
