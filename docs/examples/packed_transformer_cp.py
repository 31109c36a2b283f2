"""A tiny transformer on packed documents, with its tokens spread over ranks. One process gives the same losses.

python packed_transformer_cp.py                                    one process
torchrun --nproc-per-node 2 packed_transformer_cp.py               two ranks on one machine
torchrun --nproc-per-node 2 packed_transformer_cp.py --strategy ulysses
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported before there are process groups, because it keeps those it finds
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy, layer_norm

import longca

VOCABULARY, WIDTH, LAYERS = 64, 64, 2
HEADS, HEADS_KV, HEAD_DIM = 4, 2, 16
SHAPES = {"heads": (HEADS, HEADS_KV), "head_dim": HEAD_DIM, "dtype": torch.float32}


class Attention(nn.Module):
    """Attention with grouped queries and rotary embeddings. x is [tokens, width] with the tokens of this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * HEADS_KV) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)

    def forward(self, x: Tensor, positions: Tensor, mask: longca.masks.Mask, parallel: dict) -> Tensor:
        q, k, v = self.qkv(x).unflatten(1, (-1, HEAD_DIM)).split([HEADS, HEADS_KV, HEADS_KV], dim=1)
        q, k = rotate(q, positions), rotate(k, positions)
        return self.out(longca.attention(q, k, v, mask, **parallel).flatten(1))


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embeddings of [tokens, heads, head_dim], by the tokens' positions in the whole sequence."""
    frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = positions[:, None, None] * frequencies
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()), -1)


class Transformer(nn.Module):
    """Token embeddings, blocks of attention and a feed-forward layer, and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.attention = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, positions: Tensor, mask: longca.masks.Mask, parallel: dict) -> Tensor:
        x = self.embed(tokens)
        for attention, feed in zip(self.attention, self.feed, strict=True):
            x = x + attention(layer_norm(x, (WIDTH,)), positions, mask, parallel)
            x = x + feed(x)
        return self.norm(x) @ self.embed.weight.T


def batch(step: int, seqlen: int) -> tuple[longca.masks.Mask, Tensor, Tensor]:
    """A step's whole mask, tokens and targets. Documents have random lengths, and each token is the last plus 3."""
    mask = longca.masks.sample("causal_document", seqlen, lengths="pile", max_share=0.3, seed=step)
    random = torch.Generator().manual_seed(step)
    starts = torch.randint(VOCABULARY, (len(mask.factors["documents"]),), generator=random)
    runs = [start + 3 * torch.arange(n + 1) for start, n in zip(starts, mask.factors["documents"], strict=True)]
    return mask, torch.cat([run[:-1] for run in runs]) % VOCABULARY, torch.cat([run[1:] for run in runs]) % VOCABULARY


def prefetch(mask: longca.masks.Mask, strategy: str, mesh: DeviceMesh | None) -> None:
    """Asks for the plan that the calls with a mask will need."""
    if mesh is None:
        longca.prefetch(mask, device="cpu", **SHAPES)
    else:
        longca.prefetch(mask, strategy=strategy, mesh=mesh, **SHAPES)


def train(steps: int, seqlen: int, strategy: str, mesh: DeviceMesh | None) -> list[float]:
    """The losses of some steps. On a mesh they are the losses of all its ranks together."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, following = [], batch(0, seqlen)
    for step in range(steps):
        (mask, tokens, targets), following = following, batch(step + 1, seqlen)
        positions, parallel = torch.arange(seqlen), {}
        prefetch(following[0], strategy, mesh)  # a side thread plans the next step's mask while this step runs
        if mesh is not None:
            rank = mesh.get_local_rank()
            layout = longca.layout(mask, strategy=strategy, mesh=mesh, **SHAPES)
            tokens, targets = layout.shard(tokens, rank), layout.shard(targets, rank)
            positions = torch.from_numpy(layout.positions(rank))
            parallel = {"strategy": strategy, "mesh": mesh, "placement": layout}
        logits = model(tokens, positions, mask, parallel)
        loss = cross_entropy(logits, targets, reduction="sum") / seqlen  # divided by the tokens of all ranks
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if mesh is not None:
            for tensor in (total, *(parameter.grad for parameter in model.parameters())):
                dist.all_reduce(tensor, group=mesh.get_group())
        optimizer.step()
        losses.append(total.item())
    return losses


def main() -> None:
    """Trains, and prints one loss a line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--strategy", default="ring_p2p", choices=("ulysses", "ring_p2p", "ring_all_gather"))
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--seqlen", type=int, default=509)
    asked = options.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ranks",)) if ranks > 1 else None
    for step, loss in enumerate(train(asked.steps, asked.seqlen, asked.strategy, mesh)):
        if mesh is None or mesh.get_local_rank() == 0:
            print(f"step {step}  loss {loss:.6f}")
    if mesh is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
