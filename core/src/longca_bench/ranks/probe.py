"""Probe: a kernel that a strategy is given in place of the one that is measured, and passes its calls on to it.

While a strategy is timed it is the kernel itself that is called. A probe can also tell which calls are being made, keep
them, so that they can be made again without a strategy, or make none, so that only what is exchanged remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.manifests import Problem
from longca_bench.ranks.messages import COMPUTING
from longca_bench.verification.verify import lse_dtype

__all__ = ["Call", "Probe"]

#: A call of a kernel, to be made again.
Call = Callable[[], object]


class Probe:
    """A kernel seen through; see `longca.kernels.base.Kernel`.

    Args:
        kernel: The kernel that is measured.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.forward: Callable[..., Any] = kernel.forward
        self.backward: Callable[..., Any] = kernel.backward

    def plan(self, problem: Problem) -> Plan:
        """The kernel's own plan."""
        return self._kernel.plan(problem)

    @contextmanager
    def told(self, announce: Callable[[str], None], synchronize: Callable[[], None]) -> Iterator[None]:
        """Has every call announced before and after, so that it is known which rank does not return from one.

        Args:
            announce: Told that a call begins, and with an empty text that it has ended.
            synchronize: Waits for the device, so that a call has ended when it says so.
        """

        def tell(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                announce(f"{COMPUTING} {name}")
                result = method(*args, **kwargs)
                synchronize()
                announce("")
                return result

            return call

        with self._replaced(tell("forward", self._kernel.forward), tell("backward", self._kernel.backward)):
            yield

    @contextmanager
    def kept(self) -> Iterator[list[Call]]:
        """Keeps every call with its tensors."""
        calls: list[Call] = []

        def keep(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                calls.append(lambda: method(*args, **kwargs))
                return method(*args, **kwargs)

            return call

        with self._replaced(keep(self._kernel.forward), keep(self._kernel.backward)):
            yield calls

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Has calls return buffers as they are, and compute nothing."""
        with self._replaced(_no_forward, _no_backward):
            yield

    @contextmanager
    def _replaced(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> Iterator[None]:
        self.forward, self.backward = forward, backward
        try:
            yield
        finally:
            self.forward, self.backward = self._kernel.forward, self._kernel.backward


def _no_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    shape = (q.shape[1], q.shape[0])
    return (
        torch.zeros(q.shape, dtype=q.dtype, device=q.device) if out is None else out,
        torch.zeros(shape, dtype=lse_dtype(q), device=q.device) if lse is None else lse,
    )


def _no_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    plan: Plan,
    *,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
) -> tuple[Tensor, ...]:
    pairs = zip((q, k, v), (dq, dk, dv), strict=True)
    return tuple(torch.zeros(x.shape, dtype=x.dtype, device=x.device) if g is None else g for x, g in pairs)
