"""The part of a worker that runs streams: a training loop by `longca.attention` and `longca.prefetch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import longca
from longca.manifests import Transport
from longca_bench.measuring.commands import Answer
from longca_bench.measuring.stream_commands import RunStream, TakeStream, Way

if TYPE_CHECKING:
    from longca_bench.measuring.worker import Worker

__all__ = ["StreamWorker"]

_Results = dict[str, Tensor]


class StreamWorker:
    """Runs the steps of streams.

    Args:
        worker: The worker.

    Attributes:
        commands: The functions that do commands, by the command's type.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._taken: TakeStream | None = None
        self._tensors: list[_Results] = []
        self._asked: dict[str, Any] = {}
        self.commands: dict[type, Callable[[Any], Answer]] = {TakeStream: self._take, RunStream: self._run}

    def _take(self, taken: TakeStream) -> Answer:
        """Takes steps. Fixed ones are planned, which is timed for each mask, and made once."""
        setting, world, before = taken.setting, self._worker.world, self._worker.watch()
        self._taken, self._tensors = taken, [self._worker.tensors(each) for each in taken.tensors]
        self._asked = {"kernel": setting.kernel, "allow_unverified": setting.allow_unverified}
        if setting.strategy is not None:
            mesh: Any = world  # a strategy runs on the ranks of a job
            self._asked |= {"strategy": setting.strategy, "mesh": mesh.mesh(setting.mesh)}
            self._asked |= {"placement": setting.placement, "transport": setting.transport}
        for tensor in (x for each in self._tensors for x in each.values()):
            tensor.sum()  # the judge wrote it on another core
        seconds, peak = [], None
        if taken.way is Way.FIXED:
            for n in range(len(self._tensors)):
                start = time.perf_counter()
                self._prefetch(n).wait()
                world.synchronize()
                seconds.append(time.perf_counter() - start)
            self._steps()
            peak, _ = self._worker.peak(lambda: self._step(0, self._tensors[0]))
        elif taken.way is Way.PREFETCHED:
            self._prefetch(0).wait()
        world.synchronize()
        moved_by = self._moved_by()
        return Answer(steps=seconds, peak=peak, moved_by=moved_by, changed=before.changed(sets_up=True))

    def _moved_by(self) -> dict[str, Transport]:
        """The transport of each axis of the strategy. Empty without a strategy."""
        if "strategy" not in self._asked:
            return {}
        # Only ranks import torch.distributed.
        from longca.parallel.ready import strategy_on
        from longca.parallel.transport import moved_by

        name, mesh, transport = (self._asked[key] for key in ("strategy", "mesh", "transport"))
        return moved_by(strategy_on(name, mesh, transport), longca.registry().strategy(name))

    def _run(self, run: RunStream) -> Answer:
        """Makes the steps, and times each of them. Only fixed steps have plans that were called before."""
        assert self._taken is not None, "a stream is taken before it runs"
        world, before, is_fixed = self._worker.world, self._worker.watch(), self._taken.way is Way.FIXED
        world.line_up()
        marks, results = self._steps()
        world.synchronize()
        self._worker.tell_end()
        for named, landing in zip(results, map(self._worker.tensors, run.landing), strict=True):
            for name, there in landing.items():
                there.copy_(named[name])
        world.synchronize()
        return Answer(steps=_between(marks), changed=before.changed(threads=is_fixed, sets_up=not is_fixed))

    def _steps(self) -> tuple[list[Any], list[_Results]]:
        assert self._taken is not None, "a stream is taken before it runs"
        marks, results = [self._mark()], []
        for n, tensors in enumerate(self._tensors):
            if self._taken.way is Way.PREFETCHED:
                self._prefetch(n + 1)
            results.append(self._step(n, tensors))
            marks.append(self._mark())
        return marks, results

    def _step(self, n: int, tensors: _Results) -> _Results:
        """The results of a step's first layer. All layers have one mask and the same inputs."""
        assert self._taken is not None, "a stream is taken before it runs"
        mask, layers = self._taken.masks[n], self._taken.setting.layers
        q, k, v = (tensors[name].detach().requires_grad_() for name in "qkv")
        made = [longca.attention(q, k, v, mask, return_lse=True, **self._asked) for _ in range(layers)]
        for out, lse in reversed(made):
            gradients = torch.autograd.grad(out, (q, k, v), tensors["dout"])
            results = (out.detach(), lse, *gradients)
        return dict(zip(("out", "lse", "dq", "dk", "dv"), results, strict=True))

    def _prefetch(self, n: int) -> Any:
        assert self._taken is not None, "a stream is taken before it runs"
        q, heads_kv = self._tensors[0]["q"], self._tensors[0]["k"].shape[1]
        heads, head_dim = (q.shape[1], heads_kv), q.shape[2]
        return longca.prefetch(
            self._taken.masks[n], heads=heads, head_dim=head_dim, dtype=q.dtype, device=q.device, **self._asked
        )

    def _mark(self) -> Any:
        if self._worker.world.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(marks: list[Any]) -> list[float]:
    """Seconds between consecutive marks. The device has passed the last one."""
    return [b - a if isinstance(a, float) else a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
