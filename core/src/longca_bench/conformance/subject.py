"""The subject of a check: one offer of a kernel in one dtype and direction, and the problems it is examined on.

Shapes: q and dout [Tq, Hq, D], k and v [Tk, Hkv, D], out [Tq, Hq, D], lse [Hq, Tq].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache, cached_property

import torch
from torch import Tensor

from longca.errors import LongCAError, VerificationError
from longca.kernels.base import Kernel, Plan
from longca.manifests import Device, Offer, Problem
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca.plugins import Registry
from longca_bench.conformance.offer_problems import offer_problems
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import Reference, reference
from longca_bench.verification.verify import check_values, lse_dtype

__all__ = ["NotApplicableError", "Results", "Subject", "buffers_for", "oracle", "run"]

#: Results by name: out and lse, and after a backward dq, dk and dv.
Results = dict[str, Tensor]


class NotApplicableError(LongCAError):
    """A check that does not apply to a subject, or cannot be made here; the message says why."""


@dataclass(frozen=True)
class Subject:
    """One offer of a kernel in one dtype and direction.

    Attributes:
        registry: Where the kernel comes from.
        name: The kernel's name.
        offer: The offer.
        dtype: Data type.
        direction: `forward`, or `backward` for both.
        device: Where it runs.
    """

    registry: Registry
    name: str
    offer: Offer
    dtype: DType
    direction: Direction
    device: Device

    @property
    def kernel(self) -> Kernel:
        """The kernel's one instance."""
        kernel: Kernel = self.registry.load(self.name)
        return kernel

    def problems(self, masks: Iterable[tuple[str, Mask]] | None = None) -> list[tuple[str, Problem]]:
        """Labelled problems that the offer covers.

        Args:
            masks: Labelled masks to choose among; None for the awkward ones that `longca verify` takes.

        Raises:
            NotApplicableError: It covers none of them here.
        """
        found, refusal = offer_problems(
            self.registry, self.name, self.offer, self.dtype, self.direction, self.device, masks
        )
        if not found:
            raise NotApplicableError(refusal)
        return found

    @cached_property
    def problem(self) -> Problem:
        """The problem for checks to which the mask is all the same."""
        return self.problems()[0][1]

    def hold(self, results: Results, expected: Reference, where: str) -> None:
        """Holds results against a reference.

        Raises:
            VerificationError: A tensor is beyond its limit.
        """
        if failures := check_values(results, expected, rough_lse=self.offer.rough_lse).failures:
            raise VerificationError(f"{self.name}, {where}: {'; '.join(map(str, failures))}")


@cache
def oracle(problem: Problem, seed: int) -> tuple[Inputs, Reference]:
    """Inputs of a seed, for reading alone, and their reference."""
    inputs = draw_inputs(problem, seed)
    return inputs, reference(problem, inputs)


def buffers_for(inputs: Inputs, direction: Direction) -> Results:
    """Buffers for every result, poisoned with NaN."""
    tokens, heads, _ = inputs.q.shape
    lse = torch.full((heads, tokens), torch.nan, dtype=lse_dtype(inputs.q), device=inputs.q.device)
    made = {"out": torch.full_like(inputs.q, torch.nan), "lse": lse}
    if direction == "backward":
        made |= {f"d{name}": torch.full_like(getattr(inputs, name), torch.nan) for name in "qkv"}
    return made


def run(kernel: Kernel, plan: Plan, inputs: Inputs, buffers: Results | None = None) -> Results:
    """Runs a kernel in the direction that was planned for; its backward gets its own forward's out and lse.

    Args:
        kernel: The kernel.
        plan: Its plan.
        inputs: The tensors, handed over as they are.
        buffers: Where results go; None to leave that to the kernel.

    Raises:
        VerificationError: It returned fewer or more tensors than the contract says.
    """
    q, k, v, dout = (getattr(inputs, field.name) for field in fields(inputs))
    given = buffers or {}
    forward = kernel.forward(q, k, v, plan, **_some(given, "out", "lse"))
    results = _named(("out", "lse"), forward)
    if plan.problem.direction == "backward":
        out, lse = results["out"], results["lse"]
        grads = kernel.backward(dout, q, k, v, out, lse, plan, **_some(given, "dq", "dk", "dv"))
        results |= _named(("dq", "dk", "dv"), grads)
    return results


def _some(buffers: Results, *names: str) -> Results:
    return {name: buffers[name] for name in names if name in buffers}


def _named(names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> Results:
    if not isinstance(tensors, tuple) or len(tensors) != len(names):
        raise VerificationError(f"the kernel did not return a tuple of {', '.join(names)}, but {_described(tensors)}")
    return dict(zip(names, tensors, strict=True))


def _described(returned: object) -> str:
    length = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
    return f"a {type(returned).__name__}{length}"
