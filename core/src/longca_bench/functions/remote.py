"""Remote functions: a user's function that a worker imports and calls."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from longca.discovery.candidates import find_plugins
from longca.errors import LongCAError, RequestError, VerificationError
from longca.masks import Mask
from longca_bench.functions.arguments import ARGUMENTS
from longca_bench.functions.calling import LateError
from longca_bench.functions.commands import FUNCTION, CallFunction, LoadFunction, PlaceTokens
from longca_bench.functions.ranks import Tokens
from longca_bench.functions.user_function import names_of
from longca_bench.measuring.arena import Where
from longca_bench.measuring.case_end import CaseEndError
from longca_bench.measuring.commands import Answer
from longca_bench.measuring.status import Status
from longca_bench.measuring.workers import Workers
from longca_bench.ranks.job import Job
from longca_bench.verification.findings import same_bits

if TYPE_CHECKING:
    from longca_bench.functions.calling import Call

__all__ = ["RemoteFunction"]


class RemoteFunction:
    """A function in a worker. A worker that is lost is replaced at the next call, unless there are ranks.

    Args:
        workers: The workers of this process.
        text: The module and the function.
        timeout: Seconds that each import and each call may take.
        job: This rank's place in the job. None on one device.

    Attributes:
        name: Its name in messages.
        asks: The parameters after q, k and v that LongCA fills.

    Raises:
        RequestError: The function cannot be loaded, or cannot be called with q, k and v.
        VerificationError: Its import ends the worker, or takes too long.
    """

    def __init__(self, workers: Workers, text: str, timeout: float, job: Job | None = None) -> None:
        names_of(text)
        self._workers, self._timeout, self._job = workers, timeout, job
        self._worker = workers.of((each.distribution for each in find_plugins()), text)
        self._worker.echoes, self._age = True, -1
        self.name = text
        self.asks = self._loaded()

    def results(self, call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by their names. See `longca_bench.functions.calling.Callee.results`."""
        self._loaded()
        arena = self._workers.arena
        shared = {name: arena.clone(x) for name, x in tensors.items()}
        landing = {name: arena.like(tensors[like], math.nan) for name, like in call.results.items()}
        command = CallFunction(call, self._places(shared), self._places(landing))
        answer = self._asked(command, f" on {call.problem.concrete_mask.label}", VerificationError)
        for name, x in tensors.items():
            if not same_bits(x, shared[name]):
                x.copy_(shared[name])
        if answer.changed:
            self.end()  # the next call begins with the original state
            raise VerificationError(f"{self.name} changes global state: {', '.join(answer.changed)}")
        return {name: x.clone() for name, x in landing.items()}

    def placing(self, placement: str) -> Callable[[Mask, int], Tokens]:
        """A placement function of the user's, which is called in the worker.

        Args:
            placement: The module and the function.
        """

        def placed(mask: Mask, size: int) -> Tokens:
            self._loaded()
            landing = self._workers.arena.empty((mask.seqlen_q,), torch.int64)
            (there,) = self._places({"tokens": landing}).values()
            counts = self._asked(PlaceTokens(placement, mask, size, there), f" in {placement}", RequestError).counts
            held = landing.cpu().numpy().copy()
            return tuple(np.split(held, np.cumsum(counts)[:-1])) if sum(counts) == len(held) else ()

        placed.__name__ = placement
        return placed

    def end(self) -> None:
        """Ends the worker, with everything that it started."""
        self._worker.end()

    def _loaded(self) -> tuple[str, ...]:
        """Imports the function, unless its worker has, and returns the parameters that it asks for."""
        if self._worker.is_running and self._age == self._worker.age:
            return self.asks
        self._workers.deadline = None  # a new worker runs no code of the function yet
        self._worker.start()
        self._worker.is_joined, self._age = self._job is not None, self._worker.age
        asked = LoadFunction(self.name, os.getcwd(), self._job, self._timeout)
        found = self._asked(asked, " while it was imported", RequestError).methods.get(FUNCTION, [])
        return tuple(name for name in found if name in ARGUMENTS)

    def _places(self, tensors: Mapping[str, Tensor]) -> dict[str, Where]:
        return {name: self._worker.place(x) for name, x in tensors.items()}

    def _asked(self, command: object, when: str, raised: type[LongCAError]) -> Answer:
        """The worker's answer. An error of the function's own is raised as `raised`."""
        self._workers.deadline = time.monotonic() + self._timeout
        try:
            return self._worker.ask(command).answer
        except CaseEndError as ended:
            if ended.status is Status.TIMEOUT:
                advice = (
                    "raise --timeout if it is only slow"
                    if self._job is None
                    else "a rank may wait in a collective that others skip"
                )
                said = f"{self.name} gave no answer{when} within {self._timeout:g} s; {advice}"
                raise LateError(said) from None
            if ended.status is Status.CRASHED:
                raise VerificationError(f"{self.name}{when}: {ended}") from None
            raise raised(str(ended)) from None
        finally:
            self._workers.deadline = None
