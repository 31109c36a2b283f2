"""Remote kernels: a kernel that runs in a worker process, with the methods of `longca.kernels.base.Kernel`.

Tensors of the caller that are not in shared memory get a twin there. The twin goes with the tensor, so tensors that are
alive at the same time have addresses of their own in the worker too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longca.kernels.base import Plan
from longca.manifests import Direction, Problem
from longca.masks import Form
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.commands import Answer, Call, Mode, PlanFacts
from longca_bench.measuring.results import NAMES, ContractError, fault_of
from longca_bench.measuring.status import CaseEndError, Status
from longca_bench.measuring.worker import Reply, Workers
from longca_bench.verification.findings import same_bits
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.verify import lse_dtype

__all__ = [
    "Ran",
    "RemoteKernel",
    "RemotePlan",
    "arguments_of",
    "empty_results",
    "plan_facts",
    "results_of",
    "said_seconds",
]

#: Seconds that pickling a problem may take beside planning it.
_APART = 1.0
_numbers = count(1)


@dataclass(eq=False)
class RemotePlan(Plan):
    """A plan that a worker keeps by its number. `age` is the worker process that has it."""

    number: int
    age: int
    seconds: float
    named_form: str
    nbytes: int

    @property
    def form_text(self) -> str:
        """The form's name in records."""
        return self.named_form

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the plan's tensors."""
        return self.nbytes


@dataclass(frozen=True)
class Ran:
    """A call that a worker has made: the results in shared memory, and the answer with this process's clock."""

    results: dict[str, Tensor]
    reply: Reply


class RemoteKernel:
    """A kernel, or a pair, in a worker that loads the plugins of the distributions that provide it."""

    def __init__(self, workers: Workers, name: str, distributions: Iterable[str]) -> None:
        self._workers, self.name = workers, name
        self._worker = workers.of(distributions)
        self._twins: Any = WeakTensorKeyDictionary()
        self._forgotten: list[int] = []

    def begin(self) -> None:
        """Begins to start the worker, unless it runs."""
        self._worker.begin()

    def start(self) -> None:
        """Waits until a worker is ready whose global state no kernel has changed."""
        self._replace_changed()
        self._worker.start()

    def load(self) -> dict[str, list[str]]:
        """Imports the kernel in the worker, and returns the arguments of each method. `**` stands for any others.

        A worker whose global state was changed is replaced first. A failure is a CaseEndError.
        """
        self._replace_changed()
        return self._worker.load(self.name)

    def _replace_changed(self) -> None:
        if self._worker.is_changed:
            self._worker.end()

    def end(self) -> None:
        """Ends the worker. The next plan is made in a fresh one."""
        self._worker.end()

    def plan(self, problem: Problem) -> RemotePlan:
        """Plans a problem in the worker. A plan that cannot be made, or is none, is a CaseEndError."""
        self.load()
        number, forget = next(_numbers), tuple(self._forgotten)
        self._forgotten.clear()
        reply = self._worker.call("plan", number, self.name, problem, forget)
        facts = plan_facts(reply.answer)
        try:
            form = Form(facts.form)
        except ValueError:
            raise CaseEndError(Status.WRONG, f"the plan's form is {facts.form!r}, which is none") from None
        about = (number, self._worker.age, said_seconds(reply), facts.form_text, facts.metadata_bytes)
        plan = RemotePlan(problem, form, facts.backend, *about)
        weakref.finalize(plan, self._forgotten.append, number)
        return plan

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The kernel's forward. It raises what `run` raises."""
        buffers = {name: x for name, x in (("out", out), ("lse", lse)) if x is not None}
        found = self.run(Direction.FORWARD, {"q": q, "k": k, "v": v}, plan, buffers).results
        return found["out"], found["lse"]

    def backward(
        self,
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
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The kernel's backward. It raises what `run` raises."""
        buffers = {name: x for name, x in (("dq", dq), ("dk", dk), ("dv", dv)) if x is not None}
        tensors = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
        found = self.run(Direction.BACKWARD, tensors, plan, buffers).results
        return found["dq"], found["dk"], found["dv"]

    def run(
        self,
        direction: Direction,
        tensors: Mapping[str, Tensor],
        plan: Plan,
        buffers: Mapping[str, Tensor] | None = None,
        *,
        mode: Mode = Mode.PLAIN,
        landing: Mapping[str, Tensor] | None = None,
        abreast: bool = False,
        times: int = 1,
    ) -> Ran:
        """Makes the worker call the kernel in one direction alone, with arguments by their names in the contract's
        order.

        Results that are in no buffer land in shared tensors, which are new ones without `landing`. If `abreast`, a
        timed call begins when the workers of all ranks are ready. `times` is for the mode `load`. A kernel that raises
        or a lost process is a CaseEndError, and results that break the contract are a ContractError.
        """
        assert isinstance(plan, RemotePlan), "a plan of this kernel"
        if plan.age != self._worker.age:
            raise CaseEndError(Status.CRASHED, "the worker that had the plan is gone")
        given = buffers or {}
        if not landing:
            names = [name for name in NAMES[direction] if name not in given]
            q, k, v = (tensors[name] for name in "qkv")
            landing = empty_results(self._workers.arena, q, k, v, names)
        shared = {name: self._shared(x) for name, x in (*tensors.items(), *given.items())}
        places = {name: self._worker.place(x) for name, x in {**shared, **landing}.items()}
        arguments, filled, landed = ({name: places[name] for name in part} for part in (tensors, given, landing))
        call = Call(direction, mode, arguments, landed, filled, self.name, plan.number, abreast=abreast, times=times)
        reply = self._worker.call("call", call)
        for name, x in (*tensors.items(), *given.items()):
            if shared[name] is not x and not same_bits(shared[name], x):
                x.copy_(shared[name])
        return Ran(results_of(direction, reply.answer, given, landing), reply)

    def _shared(self, tensor: Tensor) -> Tensor:
        """The tensor itself, if it is in shared memory, or its twin there with its values."""
        if self._workers.arena.block_of(tensor) is not None:
            return tensor
        twin: Tensor | None = self._twins.get(tensor)
        if twin is None:
            twin = self._twins[tensor] = self._workers.arena.clone(tensor.detach())
        else:
            twin.copy_(tensor)
        return twin


def empty_results(arena: Arena, q: Tensor, k: Tensor, v: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    """New shared tensors for the results of these names, full of NaN."""
    tokens, heads, _ = q.shape
    shapes = {"out": (tokens, heads, v.shape[2]), "lse": (heads, tokens), "dq": q.shape, "dk": k.shape, "dv": v.shape}
    dtypes = {"lse": lse_dtype(q)}
    return {name: arena.empty(tuple(shapes[name]), dtypes.get(name, q.dtype)).fill_(torch.nan) for name in names}


def arguments_of(direction: Direction, x: Inputs, forward: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arguments of a call by their names, in the contract's order. A backward takes the results of a forward."""
    tensors = {"q": x.q, "k": x.k, "v": x.v}
    return tensors if direction == Direction.FORWARD else {"dout": x.dout, **tensors, **forward}


def plan_facts(answer: Answer) -> PlanFacts:
    """A worker's facts about the plan it made. No plan, or one that changed global state, is a CaseEndError."""
    if answer.plan is None or answer.plan.fault:
        raise CaseEndError(Status.WRONG, "the worker made no plan" if answer.plan is None else answer.plan.fault)
    if answer.changed:
        raise CaseEndError(Status.WRONG, f"plan changes global state: {', '.join(answer.changed)}")
    return answer.plan


def results_of(
    direction: Direction,
    answer: Answer,
    buffers: Mapping[str, Tensor],
    landing: Mapping[str, Tensor],
    what: str = "kernel",
) -> dict[str, Tensor]:
    """The results of a call by their names: buffers, or where others landed. Broken contracts are a ContractError."""
    names = NAMES[direction]
    if answer.fault or len(answer.returned) != len(names):
        raise ContractError({names[0]: answer.fault or f"the worker described {len(answer.returned)} results"})
    faults = {}
    wanted = {name: buffers[name] if name in buffers else landing[name] for name in names}
    for name, returned in zip(names, answer.returned, strict=True):
        if fault := fault_of(name, returned, wanted[name], name in buffers):
            faults[name] = fault
    if answer.changed:
        faults["state"] = f"the {what} changes global state: {', '.join(answer.changed)}"
    if faults:
        raise ContractError(faults)
    return wanted


def said_seconds(reply: Reply) -> float:
    """The seconds that a worker says, or those of this process's clock if they are far apart."""
    said = reply.answer.seconds or 0.0
    return said if said <= reply.seconds <= 2 * said + _APART else reply.seconds
