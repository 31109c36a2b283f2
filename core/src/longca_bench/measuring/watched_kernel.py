"""Watched kernels: a stand-in for the measured kernel that a strategy calls.

While a strategy is timed, its calls reach the kernel itself. At other times a watched kernel announces each call, keeps
the calls to repeat them without the strategy, or computes nothing, so that only the communication remains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.manifests import Problem
from longca_bench.measuring.messages import COMPUTING
from longca_bench.verification.verify import lse_dtype

__all__ = ["Call", "WatchedKernel"]

#: A call of a kernel that can be repeated.
Call = Callable[[], object]


class WatchedKernel:
    """A stand-in for a kernel, with the methods of `longca.kernels.base.Kernel`.

    Args:
        kernel: The measured kernel.
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
        """Announces the start and the end of every call, to know the rank that does not return from one.

        Args:
            announce: Gets the phase when a call begins, and an empty text when it has ended.
            synchronize: Waits for the device, so that an announced end is the end.
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
        """Keeps every call, with its tensors."""
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
        """Makes calls return their buffers unchanged, without computing."""
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
