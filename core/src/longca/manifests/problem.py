"""Problem: an attention call to compute, and the device to compute it on. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Literal

from longca.errors import RequestError, UnknownNameError
from longca.limits import shown
from longca.manifests.offers import Direction, DType, parse_dtype
from longca.masks import BlockSparseMask, Mask, Pattern
from longca.plain_text import dims_text

__all__ = ["Device", "Direction", "Problem", "check_softcap", "product_dims"]


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        kind: `cpu` or `cuda`.
        capability: Compute capability of a CUDA device, as (major, minor).
        memory: Bytes of memory. None if unknown.
        name: The vendor's name for it.

    Raises:
        RequestError: Another kind.
    """

    kind: Literal["cpu", "cuda"]
    capability: tuple[int, int] | None = None
    memory: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise RequestError(
                f'unknown kind of device {self.kind!r}. Give Device("cpu"), or Device("cuda", (9, 0)) for a compute '
                "capability"
            )

    def __str__(self) -> str:
        if self.capability is None:
            return self.name or self.kind
        return f"{self.name or self.kind} (compute capability {self.capability_text})"

    @property
    def capability_text(self) -> str:
        """The compute capability as `9.0`, or an empty text for a CPU."""
        return "" if self.capability is None else "{}.{}".format(*self.capability)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """An attention call, or a kind of call in a listing.

    Attributes:
        mask: The mask. In a listing, a pattern, which answers for all of its masks.
        heads_q: Query heads.
        heads_kv: Key and value heads. None for the number of query heads.
        head_dim: Head dimension of q and k.
        head_dim_v: Head dimension of v and out. None for that of q and k. `dims` has both.
        dtype: Data type of q, k and v, such as `bfloat16` or `bf16`.
        device: The device.
        direction: `forward`, or `backward` for both. Strings become members of `Direction`.
        softmax_scale: Factor on the scores. None for 1/√head_dim.
        softcap: Bound c of the scaled scores s, which become c·tanh(s/c). None for no bound.
        deterministic: Whether equal inputs must give equal bits.
        composed: Whether it is one part of a larger softmax. Its output is then merged with the outputs of other keys
            by their log-sum-exps, and its backward gets the out and lse of the whole softmax.
        backward_only: Whether another kernel computes the forward, as for the second half of a pair.
        allow_unverified: Whether an offer may run on a device on which nobody verified it (`Offer.expected_on`). A
            verified offer of the kernel comes first.
        sinks: Whether each query head has a sink, a logit without a value. Then the kernel computes one part of a
            larger softmax, so `composed` is set too.

    Raises:
        RequestError: No mask or no Device, heads that do not divide, a head dimension below 1, an unknown dtype or
            direction, a scale or a soft cap of 0 or less, or a forward of the backward alone.
    """

    mask: Mask | Pattern
    heads_q: int
    heads_kv: int | None = None
    head_dim: int = 128
    head_dim_v: int | None = None
    dtype: DType = "bfloat16"
    device: Device
    direction: Direction = Direction.FORWARD
    softmax_scale: float | None = None
    softcap: float | None = None
    deterministic: bool = False
    composed: bool = False
    backward_only: bool = False
    allow_unverified: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sinks, bool):
            raise RequestError(f"sinks is a {type(self.sinks).__name__}; give True for heads with sinks, or False")
        if self.sinks:
            object.__setattr__(self, "composed", True)
        # A plugin may have a mask class of its own.
        if not hasattr(self.mask, "admits"):
            given = type(self.mask).__name__
            raise RequestError(f"mask is a {given}; build one with longca.masks.build or masks.sample")
        if not isinstance(self.device, Device):
            raise RequestError(f'device is {self.device!r}; give a longca.Device, such as longca.Device("cpu")')
        if self.heads_kv is None:
            object.__setattr__(self, "heads_kv", self.heads_q)
        sizes = {name: getattr(self, name) for name in ("heads_q", "heads_kv", "head_dim")}
        for name, value in (*sizes.items(), ("head_dim_v", self.dims[1])):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**16:
                raise RequestError(f"{name} is {shown(value)}; give an integer from 1 to {2**16}")
        if self.head_dim_v == self.head_dim:
            object.__setattr__(self, "head_dim_v", None)
        if self.heads_q % self.num_heads_kv:
            raise RequestError(
                f"{self.heads_q} query heads do not divide among {self.heads_kv} KV heads; "
                "heads_q must be a multiple of heads_kv"
            )
        if isinstance(self.mask, Mask) and self.mask.heads not in (1, self.heads_kv, self.heads_q):
            raise RequestError(
                f"the mask has {self.mask.heads} heads, but q has {self.heads_q} and k has {self.heads_kv}; "
                "a mask has one head, or one for each KV head or each query head"
            )
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        if self.direction not in tuple(Direction):
            raise UnknownNameError("direction", str(self.direction), Direction)
        object.__setattr__(self, "direction", Direction(self.direction))
        if self.backward_only and self.direction != "backward":
            raise RequestError('backward_only was asked with direction "forward"; give direction="backward"')
        # Fused kernels mask before they scale. A factor of 0 or less would turn their −∞ into NaN or +∞.
        if self.softmax_scale is not None and not 0 < self.softmax_scale < math.inf:
            raise RequestError(f"softmax_scale is {self.softmax_scale}; give a number above 0, or None for 1/√head_dim")
        object.__setattr__(self, "softcap", check_softcap(self.softcap))

    @property
    def num_heads_kv(self) -> int:
        """Key and value heads, as a plain int."""
        assert self.heads_kv is not None
        return self.heads_kv

    @property
    def dims(self) -> tuple[int, int]:
        """The head dimensions of q and k, and of v and out."""
        return self.head_dim, self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def dims_text(self) -> str:
        """The head dimensions as on a command line: `128`, or `192:128` if v has another."""
        return dims_text(self.head_dim, self.head_dim_v)

    @property
    def scale(self) -> float:
        """The factor on the scores."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def is_gqa(self) -> bool:
        """Whether there are fewer KV heads than query heads."""
        return self.heads_q != self.heads_kv

    @property
    def heads_per_mask(self) -> int:
        """Query heads of a KV head that share its mask. 1 if each has its own."""
        shared = self.concrete_mask.heads in (1, self.num_heads_kv)
        return self.heads_q // self.num_heads_kv if shared else 1

    @property
    def settings(self) -> tuple[object, ...]:
        """All fields but the mask. The mask's identity and these are the key of a cache (`longca.plan_cache`)."""
        return _SETTINGS(self)

    @property
    def concrete_mask(self) -> Mask:
        """The mask of a problem that has one, and not a pattern."""
        assert isinstance(self.mask, Mask), "a problem that is computed has a mask, not a pattern"
        return self.mask

    @property
    def area(self) -> int:
        """Visible (query, key) pairs, summed over query heads."""
        mask = self.concrete_mask
        return mask.area * (self.heads_q // mask.heads)

    @property
    def flops(self) -> int:
        """Floating-point operations of the direction alone: two matrix products forward, five backward."""
        return 2 * self.area * product_dims(self.direction, *self.dims)

    def describe(self, directions: str = "", where: str = "", mask: str = "") -> str:
        """The problem in two lines, to stand above its answer. Empty arguments stand for the problem's own.

        Args:
            directions: The directions that are answered, in words.
            where: The devices, in words.
            mask: The mask or masks, in words.
        """
        mask = mask or self.concrete_mask.description
        shape = f"{self.heads_q}:{self.num_heads_kv} heads of {self.dims_text}, {self.dtype}"
        shape += ", with sinks" if self.sinks else ""
        shape += f", soft cap {self.softcap:g}" if self.softcap else ""
        return f"{mask}\n{shape}, {directions or self.direction}, on {where or self.device}"

    def with_mask(self, mask: Mask) -> Problem:
        """The same problem on another mask."""
        return replace(self, mask=mask)

    def in_direction(self, direction: Direction | str) -> Problem:
        """The same problem in another direction. In a forward nothing is left to another kernel (`backward_only`)."""
        backward_only = self.backward_only and direction == "backward"
        return replace(self, direction=Direction(direction), backward_only=backward_only)

    def narrowed(
        self,
        heads_q: Sequence[int],
        heads_kv: Sequence[int],
        ranges: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]] | None = None,
    ) -> Problem:
        """The problem of some query heads and their KV heads, and of (start, stop) ranges of the queries and the keys.

        Raises:
            MaskError: Ranges are outside the mask, descend or overlap. Or a head does not exist.
        """
        mask = self.concrete_mask
        if isinstance(mask, BlockSparseMask) and mask.heads > 1:
            everything = ((0, mask.seqlen_q),), ((0, mask.seqlen_k),)
            mask = mask.cut(*(ranges or everything), heads_q if mask.heads == self.heads_q else heads_kv)
        elif ranges is not None:
            mask = mask.cut(*ranges)
        return replace(self, mask=mask, heads_q=len(heads_q), heads_kv=len(heads_kv))


def check_softcap(softcap: object) -> float | None:
    """A soft cap as a float, or None. RequestError if it is no finite number above 0."""
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, (int, float)) or not 0 < softcap < math.inf:
        raise RequestError(f"softcap is {shown(softcap)}; give a number above 0, or None for no bound on the scores")
    return float(softcap)


def product_dims(direction: str, dim: int, dim_v: int) -> int:
    """The summed head dimensions of the matrix products of a direction alone: two forward, five backward."""
    return dim + dim_v if direction == "forward" else 3 * dim + 2 * dim_v


_SETTINGS: Callable[[Problem], tuple[object, ...]] = attrgetter(
    *(field.name for field in fields(Problem) if field.name != "mask")
)
