"""Kernel manifests: what a kernel is and what it offers, as data that needs neither torch nor the kernel's library."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from longca.manifests.offers import Offer, RequirementString

__all__ = ["API_VERSION", "ImportString", "KernelManifest", "Manifest", "Name"]

#: The version of the plugin API that this core speaks: hooks, manifests, kernels and strategies together.
API_VERSION = 1

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
ImportString = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class Manifest(BaseModel):
    """What kernels and strategies have in common.

    Attributes:
        name: Identifier: lower-case letters, digits and underscores.
        title: What a person calls it.
        upstream: Where it comes from: a link to the code or the paper.
        license: The upstream's licence, as an SPDX expression.
        requires: Packages it needs beside its own distribution's, as requirement strings, by distribution name; where
            any of several will do, with bars between them: `flash-attn-3>=3 | xformers>=0.0.34`.
        install: The command that installs those; None for `pip install` of the requirement itself.
        api: Plugin API versions it is written for.
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


class KernelManifest(Manifest):
    """What an attention kernel is and what it offers.

    Attributes:
        family: The group it is listed in, such as `flashattn`.
        offers: What it does, one row a case, in order of preference: the first that covers a problem is used.
        workspace: Import string of a torch-free function `(problem, form) -> int`: the bytes that a call in the
            problem's direction allocates on its device at its peak, beyond q, k, v, dout, out and lse as they are given
            and beyond its results. None where it is not known.
        plan_bytes: Import string of a torch-free function `(problem, form) -> int`: the bytes of the plan's tensors on
            the device. None where it is not known.
    """

    family: Name
    offers: Annotated[tuple[Offer, ...], Field(min_length=1)]
    workspace: ImportString | None = None
    plan_bytes: ImportString | None = None
