"""StrategyMemory: the bytes that one call of a context-parallel strategy takes on a rank."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StrategyMemory"]


@dataclass(frozen=True)
class StrategyMemory:
    """Bytes on the rank that needs most, without the log-sum-exps and without the kernel's own workspace.

    The function that a `StrategyManifest` names as `memory` returns one.

    Attributes:
        forward: Bytes at the forward's peak beyond q, k and v. The output is counted.
        backward: Bytes at the backward's peak beyond q, k, v, out, dout and `kept`. dq, dk and dv are counted.
        kept: Bytes that a forward keeps for the backward, beyond q, k, v and out.
    """

    forward: int
    backward: int
    kept: int = 0
