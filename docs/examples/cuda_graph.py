"""A transformer layer with longca.attention in a CUDA graph: captured once, and replayed on new inputs.

    python docs/examples/cuda_graph.py [--kernel auto] [--seqlen 4096]

Needs a CUDA device. Compares a replay with the same layer in eager mode, and prints the host time of both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import longca
from longca import masks


class Layer(nn.Module):
    """A small transformer layer. Its tokens are packed: x is [T, Hq · D].

    Args:
        mask: The mask, T × T. The layer holds it, because the plan is found by it.
        kernel: A kernel's or a pair's name, or `auto`.
        heads: Query heads and KV heads.
        head_dim: D.
    """

    def __init__(self, mask: masks.Mask, kernel: str, heads: tuple[int, int] = (8, 2), head_dim: int = 64) -> None:
        super().__init__()
        self.mask, self.kernel, self.head_dim = mask, kernel, head_dim
        self.heads = [heads[0], heads[1], heads[1]]
        width = heads[0] * head_dim
        self.qkv = nn.Linear(width, sum(self.heads) * head_dim, bias=False)
        self.mixed, self.up, self.down = (
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output: [T, Hq · D]."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.head_dim)).split(self.heads, dim=1)
        out = longca.attention(q, k, v, self.mask, kernel=self.kernel)
        x = x + self.mixed(out.flatten(1))
        return x + self.down(nn.functional.silu(self.up(self.norms[1](x))))


class Captured:
    """A layer's forward and backward as one CUDA graph.

    Args:
        layer: The layer.
        x: Inputs of the shape of all replays.
        dout: Gradient of the output.
    """

    def __init__(self, layer: nn.Module, x: Tensor, dout: Tensor) -> None:
        self.x, self.dout = x.detach().clone().requires_grad_(), dout.clone()
        # The first calls plan the mask and compile kernels, which a capture forbids.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                layer(self.x).backward(self.dout)
        torch.cuda.current_stream().wait_stream(side)
        # Gradients that are made during the capture are written anew by each replay.
        layer.zero_grad(set_to_none=True)
        self.x.grad = None
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            out = layer(self.x)
            out.backward(self.dout)
        self.out = out.detach()  # a graph of autograd that lives on would be found by later calls on other streams

    def replay(self, x: Tensor, dout: Tensor) -> Tensor:
        """The output for new inputs. The gradients are in `x.grad` and in the parameters."""
        with torch.no_grad():
            self.x.copy_(x)
        self.dout.copy_(dout)
        self.graph.replay()
        return self.out


def distance(replayed: Tensor, eager: Tensor) -> float:
    """The largest difference as a part of the largest value."""
    return float(((replayed - eager).abs().max() / eager.abs().max()).detach())


def host_ms(step: Callable[[], object], steps: int = 20) -> float:
    """Milliseconds until a step returns on the host. The device may still be busy."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    milliseconds = (time.perf_counter() - start) / steps * 1e3
    torch.cuda.synchronize()
    return milliseconds


def main() -> None:
    """Captures a layer, replays it on new inputs, and prints the distances and the host times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--seqlen", type=int, default=4096)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("a CUDA graph needs a CUDA device, and torch sees none here")
    mask = masks.build("causal", asked.seqlen)
    layer = Layer(mask, asked.kernel).to("cuda", torch.bfloat16)
    first, dout, x = (torch.randn(asked.seqlen, 512, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    captured = Captured(layer, first, dout)
    out = captured.replay(x, dout)

    leaf = x.clone().requires_grad_()
    expected = layer(leaf)
    (dx,) = torch.autograd.grad(expected, leaf, dout)
    print(f"distance of out {distance(out, expected):.1e}, of dx {distance(captured.x.grad, dx):.1e}")
    eager = host_ms(lambda: torch.autograd.grad(layer(leaf), leaf, dout))
    print(f"host time of a step: eager {eager:.3f} ms, graph {host_ms(lambda: captured.replay(x, dout)):.3f} ms")


if __name__ == "__main__":
    main()
