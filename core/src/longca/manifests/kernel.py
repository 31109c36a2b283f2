"""Kernel manifests: a kernel and its offers, as data that needs neither torch nor the kernel's library."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from longca.manifests.offers import Offer, RequirementString

__all__ = ["API_VERSION", "AUTO", "ImportString", "KernelManifest", "Manifest", "Name"]

#: The version of this core's plugin API: hooks, manifests, kernels and strategies together.
API_VERSION = 1

#: The name by which a kernel, a strategy or a placement is left to the adviser.
AUTO = "auto"

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
ImportString = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class Manifest(BaseModel):
    """The common part of kernel and strategy manifests.

    Attributes:
        name: Identifier: lower-case letters, digits and underscores. `auto` is reserved.
        title: Name for people.
        upstream: Link to the code or the paper.
        license: The upstream's licence, as an SPDX expression.
        requires: Packages that it needs beyond its own distribution's, as requirement strings by distribution name.
            Bars separate alternatives: `flash-attn-3>=3 | xformers>=0.0.34`.
        install: The command that installs these packages. None for `pip install` of the requirement itself.
        api: Versions of the plugin API that it is written for.
        implementation: Import string of its class, `package.module:Class`, resolved at first use.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    title: Annotated[str, Field(min_length=1)]
    upstream: Annotated[str, Field(min_length=1)]
    license: Annotated[str, Field(min_length=1)]
    requires: tuple[RequirementString, ...] = ()
    install: str | None = None
    api: Annotated[tuple[int, ...], Field(min_length=1)] = (API_VERSION,)
    implementation: ImportString

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name == AUTO:
            raise ValueError(f"{AUTO} stands for LongCA's own choice; give another name")
        return name

    def __hash__(self) -> int:
        return hash(self.name)  # manifests are parts of many keys, and to hash all fields takes longer than a verdict


class KernelManifest(Manifest):
    """The description of an attention kernel.

    Attributes:
        family: Name of the group that lists it, such as `flashattn`.
        offers: Its offers in order of preference. The first offer that covers a problem is used.
        workspace: Import string of a torch-free function `(problem, form) -> int`: the bytes that a call in the
            problem's direction allocates on its device at its peak, beyond its arguments and its results. None if
            unknown.
        plan_bytes: Import string of a torch-free function `(problem, form) -> int`: the bytes of the plan's tensors on
            the device. None if unknown.
    """

    family: Name
    offers: Annotated[tuple[Offer, ...], Field(min_length=1)]
    workspace: ImportString | None = None
    plan_bytes: ImportString | None = None

    def __hash__(self) -> int:
        # Listings ask each offer alone, so that many manifests have one name.
        first = self.offers[0]
        return hash((self.name, len(self.offers), first.form, first.dtypes, first.verified_on, first.backward))
