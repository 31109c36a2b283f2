"""Asked: one question, and the sources that answer it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from longca.manifests import Direction, Layout, Problem, Verdict, missing
from longca.plugins import Registry
from longca_advice.capacity import Capacity
from longca_advice.costs import CostModel, Key
from longca_advice.devices import evidence_name

__all__ = ["Asked"]


@dataclass(frozen=True)
class Asked:
    """The problem that was asked, and the sources that answer it.

    Attributes:
        problem: The problem of all ranks together, in any direction.
        training: Whether a backward follows the forward.
        registry: Knows kernels and strategies.
        costs: Predicts the seconds of kernel calls.
        capacity: The memory of each rank's device, or None if unknown.
        kernels: The kernels to choose from.
        anywhere: Whether a kernel stays valid when its packages are missing here.
    """

    problem: Problem
    training: bool
    registry: Registry
    costs: CostModel
    capacity: Capacity | None
    kernels: tuple[str, ...]
    anywhere: bool = True

    @cached_property
    def device_name(self) -> str:
        """The device's name in the evidence."""
        return evidence_name(self.problem.device)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions whose times count."""
        return ("forward", "backward") if self.training else ("forward",)

    @property
    def flops(self) -> float:
        """Floating-point operations of all directions, on all ranks."""
        forward = replace(self.problem, direction=Direction.FORWARD).flops
        return forward * 3.5 if self.training else forward

    def key(self, kernel: str, direction: str) -> Key:
        """The cost model's key for this problem's calls of a kernel."""
        return Key(self.device_name, kernel, direction, self.problem.dtype, self.problem.head_dim)

    def resolve(self, kernel: str, problem: Problem, layout: Layout | None = None) -> Verdict:
        """Whether a kernel takes a problem, or every step of a layout."""
        return self.registry.resolve(kernel, problem, layout, anywhere=self.anywhere)

    def fits(self, size: int) -> bool | None:
        """Whether bytes fit the device, or None if its memory is unknown."""
        return None if self.capacity is None else self.capacity.fits(size)

    def install(self, kernel: str, verdict: Verdict) -> tuple[str, ...]:
        """The commands that install the packages that a kernel needs and that are missing here."""
        manifest = self.registry.manifest(kernel)
        offers = [offer for offer in (verdict.offer, *verdict.offers) if offer is not None]
        needed = dict.fromkeys([*manifest.requires, *(text for offer in offers for text in offer.requires)])
        lacking = [text for text in needed if missing(text)]
        return tuple(dict.fromkeys(manifest.install or f"pip install '{text}'" for text in lacking))

    def install_of(self, *kernels: str | None) -> tuple[str, ...]:
        """The same for several kernels, by their manifests alone."""
        found = (self.install(kernel, Verdict(kernel)) for kernel in kernels if kernel is not None)
        return tuple(dict.fromkeys(command for commands in found for command in commands))

    def as_json(self, ranks: int, per_node: int) -> dict[str, Any]:
        """The problem as plain data."""
        mask = self.problem.concrete_mask
        return {
            "mask": mask.pattern,
            "seqlen": mask.seqlen_q,
            "factors": {name: _plain(value) for name, value in mask.factors.items()},
            "density": mask.density,
            "heads_q": self.problem.heads_q,
            "heads_kv": self.problem.num_heads_kv,
            "head_dim": self.problem.head_dim,
            "dtype": self.problem.dtype,
            "direction": "training" if self.training else "forward",
            "per_node": min(per_node, ranks),
            "memory": None if self.capacity is None else self.capacity.total,
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value
