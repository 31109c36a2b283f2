"""Offers: the rows of a manifest, each with a set of problems that a kernel computes.

Kernels are not products of independent flags. A backward may need one architecture, and block sparsity another head
dimension. So a manifest lists rows, and a problem is valid if one row covers all of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, cast, get_args

from packaging.requirements import InvalidRequirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from longca.errors import RequestError, UnknownNameError
from longca.manifests.packages import alternatives
from longca.manifests.sizes import Size
from longca.masks import Form

__all__ = [
    "DTYPE_BYTES",
    "Backward",
    "DType",
    "Direction",
    "MetadataMemory",
    "Offer",
    "RequirementString",
    "parse_dtype",
]

DType = Literal["float64", "float32", "bfloat16", "float16"]

#: Bytes of an element of each data type.
DTYPE_BYTES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

_SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "half": "float16"}


def parse_dtype(dtype: object) -> DType:
    """The data type of q, k and v by its name, such as `bfloat16` or `bf16`, or by PyTorch's `torch.bfloat16`.

    Raises:
        RequestError: It has 8 bits or fewer.
        UnknownNameError: It is unknown.
    """
    name, known = str(dtype).strip().lower().removeprefix("torch."), get_args(DType)
    if any(part in name for part in ("fp8", "float8", "int8", "fp4", "float4", "e4m3", "e5m2")):
        raise RequestError(
            f"LongCA has no attention in {dtype} yet, nor in other types of 8 bits; give {', '.join(known)}"
        )
    name = _SHORT_DTYPES.get(name, name)
    if name not in known:
        raise UnknownNameError("dtype", str(dtype), known)
    return cast(DType, name)


MetadataMemory = Literal["O(1)", "O(documents)", "O(slices)", "O(S)", "O(blocks)", "O(S²)"]


class Direction(StrEnum):
    """The part of training that a problem is about. Strings with these values are accepted everywhere."""

    FORWARD = "forward"
    """The forward alone."""
    BACKWARD = "backward"
    """The backward, with the forward before it."""


class Backward(StrEnum):
    """How a kernel's backward takes a log-sum-exp."""

    NONE = "none"
    """There is no backward."""
    OWN = "own"
    """It takes only its own forward's out and lse."""
    EXTERNAL = "external"
    """It takes the out and lse of a larger softmax, of which this call was one part."""
    LSE_GRAD = "lse_grad"
    """It is differentiable in (out, lse) only. `longca.kernels.lse_grad` composes it with a larger softmax."""

    @property
    def composes(self) -> bool:
        """Whether merged partial results can be differentiated."""
        return self in (Backward.EXTERNAL, Backward.LSE_GRAD)


def _requirement(text: str) -> str:
    try:
        alternatives(text)
    except InvalidRequirement as error:
        raise ValueError(f"{text!r} is no requirement such as 'flash-attn>=2.7', or 'a>=3 | b': {error}") from None
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is no range of compute capabilities such as '>=8.0' or '==9.0'") from None
    return text


RequirementString = Annotated[str, AfterValidator(_requirement)]
CapabilityRange = Annotated[str, AfterValidator(_specifier)]
HeadDim = Annotated[int, Field(ge=1)]

_COUNTED = (Form.ROW_INTERVALS, Form.COLUMN_INTERVALS, Form.LAYERS)


class Offer(BaseModel):
    """One row of a manifest. Every problem that satisfies all of it works, in all directions of the row.

    Attributes:
        form: The form in which it takes its mask.
        most: Largest number of intervals of a row, intervals of a column or layers. None for any number.
        block_sizes: Block sizes of uniform block-sparse masks. None for any size.
        variable_blocks: Whether it takes block-sparse masks whose blocks differ in size.
        mask_heads: The heads that may have masks of their own: `shared` for none, `kv` for KV heads (the query heads of
            a group share one), `query` for KV heads and query heads.
        heads_per_mask: Numbers of query heads of a KV head that may share their mask, 1 for heads with masks of their
            own. None for any number.
        min_block_rows: Smallest number of rows of a block: its queries, under each head that shares its mask.
        unequal_lengths: Whether the numbers of queries and keys may differ.
        forward: Whether there is a forward. An offer without a forward serves as the second half of a pair.
        backward: The log-sum-exp that its backward takes. `none` offers the forward alone.
        dtypes: Data types of q, k and v.
        head_dims: Head dimensions, if only a few work. None for a rule instead. (192, 128) is 192 of q and k with 128
            of v.
        max_head_dim: Largest head dimension.
        head_dim_multiple: Head dimensions are multiples of this.
        unequal_head_dims: Whether v may have another head dimension than q and k, if both are by the list or rule.
        softcap: Whether it bounds the scores by `Problem.softcap`.
        max_seqlen: Largest number of queries or keys.
        max_sizes: Other sizes, each with its largest value.
        gqa: Whether there may be fewer KV heads than query heads.
        cpu: Whether it runs on CPUs.
        verified_on: Compute capabilities of the CUDA devices on which it was verified, as a version range. None for no
            such device.
        expected_on: Further compute capabilities on which it should run by its sources, and on which nobody verified
            it. A device in both ranges counts as verified.
        deterministic: Whether equal inputs give equal bits.
        requires: Packages that this row needs beyond the manifest's, as requirement strings.
        metadata: Growth of its mask metadata on the device.
        fills_buffers: Whether it writes results straight into the caller's buffers, and does not copy them.
        rough_lse: Whether its log-sum-exp sums weights that were rounded to the data type. Its outputs are accurate,
            and outputs that are merged by this log-sum-exp are not.
        optional_lse: Whether it may give no log-sum-exp, which is then NaN everywhere. A run measures it on one device
            and records `without_lse`. Pairs, strategies and conformance need a log-sum-exp.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: Form
    most: Annotated[int, Field(ge=1)] | None = None
    block_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    variable_blocks: bool = False
    mask_heads: Literal["shared", "kv", "query"] = "shared"
    heads_per_mask: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    min_block_rows: Annotated[int, Field(ge=1)] = 1
    unequal_lengths: bool = False
    forward: bool = True
    backward: Backward = Backward.NONE
    dtypes: Annotated[tuple[DType, ...], Field(min_length=1)]
    head_dims: tuple[HeadDim | tuple[HeadDim, HeadDim], ...] | None = None
    max_head_dim: Annotated[int, Field(ge=1)] | None = None
    head_dim_multiple: Annotated[int, Field(ge=1)] = 1
    unequal_head_dims: bool = False
    softcap: bool = False
    max_seqlen: Annotated[int, Field(ge=1)] | None = None
    max_sizes: tuple[tuple[Size, Annotated[int, Field(ge=1)]], ...] = ()
    gqa: bool = True
    cpu: bool = False
    verified_on: CapabilityRange | None = None
    expected_on: CapabilityRange | None = None
    deterministic: bool = False
    requires: tuple[RequirementString, ...] = ()
    metadata: MetadataMemory
    fills_buffers: bool = True
    rough_lse: bool = False
    optional_lse: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Offer:
        if not (self.cpu or self.verified_on or self.expected_on):
            raise ValueError("an offer needs a device: cpu=True, verified_on='>=8.0' or expected_on='>=8.0'")
        if self.most is not None and self.form not in _COUNTED:
            raise ValueError(f"most is for {', '.join(_COUNTED)}, not for {self.form}")
        if self.form is not Form.BLOCK_SPARSE and (self.block_sizes is not None or self.variable_blocks):
            raise ValueError(f"block_sizes and variable_blocks are for {Form.BLOCK_SPARSE}, not for {self.form}")
        if not self.forward and not self.backward.composes:
            raise ValueError("an offer without a forward needs backward='external' or 'lse_grad'")
        return self

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that it offers."""
        if not self.forward:
            return (Direction.BACKWARD,)
        return (Direction.FORWARD,) if self.backward is Backward.NONE else tuple(Direction)

    def takes_dims(self, dim: int, dim_v: int) -> bool:
        """Whether it takes a head dimension of q and k with one of v."""
        if self.head_dims is not None:
            listed = (dim, dim_v) in self.head_dims or (dim in self.head_dims and dim_v in self.head_dims)
        else:
            listed = not dim % self.head_dim_multiple and not dim_v % self.head_dim_multiple
            listed = listed and max(dim, dim_v) <= (self.max_head_dim or dim + dim_v)
        return listed and (dim == dim_v or self.unequal_head_dims or (dim, dim_v) in (self.head_dims or ()))

    def runs_on(self, kind: str) -> bool:
        """Whether it runs on some devices of a kind."""
        return self.cpu if kind == "cpu" else bool(self.verified_on or self.expected_on)
