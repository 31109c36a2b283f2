"""A case: one measurement that a suite asks for.

The hash of a case identifies it. Its mask is drawn from the seed when it is needed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from longca.manifests import Device, Problem, Transport
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask, get_pattern, sample
from longca_bench.suites.meshes import MeshAxes

__all__ = ["Case", "Parallel"]


@dataclass(frozen=True)
class Parallel:
    """The way in which the ranks of a job share a case.

    `auto` stands for the placement that is predicted to be fastest, and for the strategy's own choice of a transport.
    The mesh has (axis, ranks) pairs, the outermost axis first.
    """

    strategy: str
    placement: str
    mesh: MeshAxes
    transport: Transport = Transport.AUTO

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return prod(ranks for _, ranks in self.mesh)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Ranks along each axis, by the axis's name."""
        return dict(self.mesh)

    @property
    def mesh_text(self) -> str:
        """The mesh as records have it: `ring=2,ulysses=2`."""
        return ",".join(f"{axis}={ranks}" for axis, ranks in self.mesh)


@dataclass(frozen=True)
class Case:
    """One measurement of a kernel or a pair.

    `seqlen` counts the tokens of all ranks. `lengths` is the source of document lengths. `factors` are the mask factors
    of the suite, as sorted (name, value) pairs. A case with `parallel` is shared by ranks. `allow_unverified` lets an
    offer run that nobody verified on the device, and is no part of the case's digest. `head_dim_v` is that of v, or
    None for that of q and k. `softcap` is that of `longca.Problem`.
    """

    kernel: str
    pattern: str
    seqlen: int
    lengths: str
    seed: int
    heads_q: int
    heads_kv: int
    head_dim: int
    dtype: DType
    direction: Direction
    factors: tuple[tuple[str, int | float | tuple[int, ...]], ...] = ()
    parallel: Parallel | None = None
    allow_unverified: bool = False
    head_dim_v: int | None = None
    softcap: float | None = None
    sinks: bool = False

    def digest(self, device: str) -> str:
        """16 hex digits of the case on a device."""
        about = asdict(self)
        del about["allow_unverified"]
        for name in ("head_dim_v", "softcap", "sinks"):  # the first records were made before cases had these fields
            if about[name] in (None, False):
                del about[name]
        if self.parallel is None:
            del about["parallel"]
        elif self.parallel.transport is Transport.AUTO:
            del about["parallel"]["transport"]
        text = json.dumps([about, device], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def mask(self) -> Mask:
        """The case's mask, drawn from its seed."""
        heads = self.heads_kv if get_pattern(self.pattern).per_head else 1
        same = replace(self, kernel="", dtype="float32", direction=Direction.FORWARD, head_dim=1, parallel=None)
        return _mask(replace(same, heads_q=1, heads_kv=heads, head_dim_v=None, softcap=None, sinks=False))

    def problem(self, device: Device) -> Problem:
        """The problem that the kernel gets."""
        return Problem(
            mask=self.mask,
            heads_q=self.heads_q,
            heads_kv=self.heads_kv,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            softcap=self.softcap,
            dtype=self.dtype,
            device=device,
            direction=self.direction,
            allow_unverified=self.allow_unverified,
            sinks=self.sinks,
        )


@lru_cache(maxsize=4)
def _mask(case: Case) -> Mask:
    """Masks of block-sparse patterns differ by KV head."""
    factors: dict[str, Any] = {"heads": case.heads_kv} if get_pattern(case.pattern).per_head else {}
    return sample(case.pattern, case.seqlen, lengths=case.lengths, seed=case.seed, **{**factors, **dict(case.factors)})
