"""Watched kernels: a stand-in for the measured kernel that a strategy calls.

A watched kernel marks each call in memory that its rank reads, so that a rank which does not return from one is known.
It can also keep the calls to repeat them without the strategy, or compute nothing, so that only the communication
remains.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.manifests import Problem
from longca_bench.measuring.messages import PUSHING
from longca_bench.verification.verify import lse_dtype

__all__ = ["Call", "Marks", "WatchedKernel"]

#: Methods of a kernel by their marks, and the pushes of a transport.
INSIDE = ("", "forward", "backward", PUSHING)
#: A call of a kernel that can be repeated.
Call = Callable[[], object]


class Marks:
    """The method of a kernel that a rank is inside, or that it makes pushes, in memory that its rank reads."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)

    def set(self, number: int) -> None:
        """Notes a method by its number in INSIDE, or 0 for none."""
        self._memory[0] = number

    def pushing(self, begins: bool) -> None:
        """Notes that the transport begins pushes, or ends them."""
        self.set(INSIDE.index(PUSHING) if begins else 0)

    def read(self) -> str:
        """The name of the noted method, or `push`, or an empty text."""
        return INSIDE[self._memory[0] % len(INSIDE)]


@dataclass
class _Span:
    """Events around a call on a CUDA device, and the method's number. Later calls use them again."""

    number: int = 0
    begin: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    end: torch.cuda.Event = field(default_factory=torch.cuda.Event)


class WatchedKernel:
    """A stand-in for a kernel, with the methods of `longca.kernels.base.Kernel`.

    It marks the begin and the end of each call. On CUDA devices events around each call do so too, because a call ends
    there before its work does.
    """

    def __init__(self, kernel: Kernel, marks: Marks, device: torch.device) -> None:
        self._kernel, self._marks, self._device = kernel, marks, device
        self._spans: list[_Span] = []
        self._count = 0
        self.forward, self.backward = self._marked(kernel.forward, 1), self._marked(kernel.backward, 2)

    def plan(self, problem: Problem) -> Plan:
        """The kernel's own plan."""
        return self._kernel.plan(problem)

    def restart(self) -> None:
        """Forgets earlier calls, before a call of the strategy."""
        self._count = 0

    def look(self) -> None:
        """Marks the call that the CUDA device is inside, while its host waits."""
        spans = self._spans[: self._count]
        self._marks.set(next((each.number for each in spans if each.begin.query() and not each.end.query()), 0))

    @contextmanager
    def waiting(self, synchronize: Callable[[], None]) -> Iterator[None]:
        """Waits for the device before and after every call, so that an error is raised in the call that made it."""

        def wait(method: Callable[..., Any], number: int) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                synchronize()
                self._marks.set(number)
                result = method(*args, **kwargs)
                synchronize()
                self._marks.set(0)
                return result

            return call

        with self._replaced(wait(self._kernel.forward, 1), wait(self._kernel.backward, 2)):
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

        with self._replaced(keep(self.forward), keep(self.backward)):
            yield calls

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Makes calls return their buffers unchanged, without computing."""
        with self._replaced(_no_forward, _no_backward):
            yield

    @contextmanager
    def _replaced(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> Iterator[None]:
        before = self.forward, self.backward
        self.forward, self.backward = forward, backward
        try:
            yield
        finally:
            self.forward, self.backward = before

    def _marked(self, method: Callable[..., Any], number: int) -> Callable[..., Any]:
        mark = self._marks.set

        def call(*args: Any, **kwargs: Any) -> Any:
            mark(number)
            result = method(*args, **kwargs)
            mark(0)
            return result

        def call_on_cuda(*args: Any, **kwargs: Any) -> Any:
            if self._count == len(self._spans):
                self._spans.append(_Span())
            span = self._spans[self._count]
            span.number = number
            span.begin.record()
            result = call(*args, **kwargs)
            span.end.record()
            self._count += 1
            return result

        return call_on_cuda if self._device.type == "cuda" else call


def _no_forward(
    q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    shape = (q.shape[1], q.shape[0])
    return (
        torch.zeros(q.shape, dtype=q.dtype, device=q.device) if out is None else out,
        torch.zeros(shape, dtype=lse_dtype(q), device=q.device) if lse is None else lse,
    )


def _no_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object, **buffers: Any) -> tuple[Tensor, ...]:

    given = (("dq", q), ("dk", k), ("dv", v))
    return tuple(
        torch.zeros(x.shape, dtype=x.dtype, device=x.device) if buffers.get(name) is None else buffers[name]
        for name, x in given
    )
