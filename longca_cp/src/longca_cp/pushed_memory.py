"""Memory of pushes: the windows of this rank, and its tensors beside them, in bytes. Torch-free.

`longca_cp.memory` has the symbols. A window counts as if a call made it, though all calls share it. The formulas assume
few runs of rows, so that nothing is packed. A ring of one rank pushes nothing, and has these formulas too.

| part | window | beside it |
|---|---|---|
| ring, n ranks | min(2, n − 1) KV | nothing: the first step reads k and v as they lie |
| its gradients | as much, for parts of gradients | two parts, and from three ranks on a sum in float32 |
| gather in c chunks | min(2, c) chunks of all keys and values | nothing |
| its gradients | min(2, c) chunks of others' parts | as many chunks' gradients, and a sum from three ranks on |
| exchange of heads | E there and Q back. In the backward Q there and E back | results by heads, until the call ends |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca_cp.overlap import SLOTS

if TYPE_CHECKING:
    from longca_cp.share import Share

__all__ = [
    "exchange",
    "exchange_backward",
    "gather",
    "gather_backward",
    "gradient_ring",
    "outer_gradient_ring",
    "ring",
]

#: From this number of ranks on, the sum of gradients is a tensor of its own.
_SUMMED = 3


def ring(share: Share, ranks: int) -> int:
    """Keys and values of a ring."""
    return min(SLOTS, ranks - 1) * share.kv


def gradient_ring(share: Share, ranks: int, inner: bool = False) -> int:
    """Keys and values of a ring, and their gradients. An inner ring always ends with a sum in float32."""
    sums = share.wide if inner or ranks >= _SUMMED else 0
    return 2 * ring(share, ranks) + (min(2, ranks) + sums) * share.kv


def outer_gradient_ring(share: Share, ranks: int) -> int:
    """The same of a ring around rings, whose parts are sums already. The inner ring counts the newest part."""
    sums = share.wide * share.kv if ranks >= _SUMMED else 0
    return (1 + share.wide) * ring(share, ranks) + sums


def gather(share: Share, ranks: int, chunks: int) -> int:
    """Output, keys and values of a gather."""
    return share.q + min(SLOTS, chunks) * ranks * share.kv // chunks


def gather_backward(share: Share, ranks: int, chunks: int) -> int:
    """Gradients, keys and values of a gather."""
    slots, mine = min(SLOTS, chunks), share.kv // chunks
    sums = share.wide * mine if ranks >= _SUMMED else 0
    return share.q + share.kv + slots * (2 * ranks + ranks - 1) * mine + sums


def exchange(share: Share, mine: Share, inside: int) -> int:
    """Output by tokens, the window, and the calls on heads, whose results are pushed until the end."""
    return share.q + (mine.q + mine.kv) + mine.q + inside


def exchange_backward(share: Share, mine: Share, inside: int) -> int:
    """Gradients by tokens, the window, gradients by heads side by side, and the calls on heads."""
    whole = mine.q + mine.kv
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q + whole + whole + max(inside, sums)
