"""The part of a worker that calls a user's function for `longca verify --function`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # it is there, and documented

from longca.errors import LongCAError
from longca.plain_text import plain_text
from longca_bench.functions.calling import Here, read_function
from longca_bench.functions.commands import FUNCTION, CallFunction, LoadFunction, PlaceTokens
from longca_bench.functions.ranks import Ranks, placed_tokens
from longca_bench.functions.user_function import load
from longca_bench.measuring.commands import Answer
from longca_bench.ranks.job import Job
from longca_bench.ranks.store import open_store

if TYPE_CHECKING:
    from longca_bench.measuring.worker import Worker

__all__ = ["FunctionWorker"]

_MOST = 3500  # characters of an error


class FunctionWorker:
    """Calls a function on tensors in shared memory.

    Args:
        worker: The worker.

    Attributes:
        commands: The functions that do commands, by the command's type.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._function: Here | None = None
        self.commands: dict[type, Callable[[Any], Answer]] = {
            LoadFunction: self._told(self._load),
            PlaceTokens: self._told(self._place),
            CallFunction: self._told(self._call),
        }

    def _told(self, do: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
        """A command whose errors of LongCA are said as they are, because they have their remedy."""

        def told(command: Any) -> Answer:
            try:
                return do(command)
            except LongCAError as error:
                return Answer(error=plain_text(error, _MOST))

        return told

    def _load(self, asked: LoadFunction) -> Answer:
        os.chdir(asked.folder)
        sys.path.insert(0, asked.folder)
        if asked.job is not None:
            self._join(asked.job, timedelta(seconds=asked.timeout))
        ranks = None if asked.job is None else Ranks.of()
        function = read_function(load(asked.text), asked.text)
        self._function = Here(function, ranks)
        return Answer(methods={FUNCTION: list(function.asks)})

    def _join(self, job: Job, timeout: timedelta) -> None:
        """Joins the workers of all ranks. The function gets their process group."""
        is_cuda = self._worker.world.device.type == "cuda"
        store = PrefixStore("function", open_store(job.host, job.port))
        backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=job.rank, world_size=job.size, timeout=timeout)

    def _place(self, asked: PlaceTokens) -> Answer:
        found = placed_tokens(load(asked.text), asked.mask, asked.size)
        there = self._worker.tensors({"tokens": asked.landing})["tokens"]
        there.copy_(torch.cat([torch.from_numpy(each) for each in found]))
        return Answer(counts=[len(each) for each in found])

    def _call(self, asked: CallFunction) -> Answer:
        assert self._function is not None, "a function is loaded before it is called"
        tensors, landing = self._worker.tensors(asked.tensors), self._worker.tensors(asked.landing)
        before = self._worker.watch()
        results = self._function.results(asked.call, tensors)
        self._worker.world.synchronize()
        for name, there in landing.items():
            there.copy_(results[name])
        self._worker.world.synchronize()
        return Answer(changed=before.changed(sets_up=True))
