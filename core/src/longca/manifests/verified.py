"""Verified: the offers that `longca verify --unverified` checked on this machine, and the standing of any offer.

The file is `verified.jsonl` in the user's data folder, or the path in LONGCA_VERIFIED. Each line is one check of an
offer on a device. A check counts for that device model and for the versions of packages that it names. The last check
decides.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path

import platformdirs
from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ConfigDict, ValidationError

from longca.manifests.kernel import KernelManifest
from longca.manifests.offers import Offer
from longca.manifests.packages import alternatives, installed_version, sources_digest
from longca.manifests.problem import Device

__all__ = ["Check", "Standing", "check_of", "note_check", "standing", "verified_path", "verified_stamp", "versions_of"]

#: Between a package's version and the digest of its sources.
_SOURCES = " with sources "


class Standing(StrEnum):
    """The standing of an offer on a device."""

    VERIFIED = "verified"
    """Its manifest says that it was verified there."""
    VERIFIED_HERE = "verified here"
    """Its manifest expects it to run there, and it was verified on this machine."""
    EXPECTED = "expected"
    """Its manifest expects it to run there, and nobody verified it."""
    FAILED_HERE = "failed here"
    """Its manifest expects it to run there, and its verification on this machine failed."""
    NOT_OFFERED = "not offered"
    """It is not for such devices."""

    @property
    def is_open(self) -> bool:
        """Whether the offer runs only if an unverified offer is allowed."""
        return self in (Standing.EXPECTED, Standing.FAILED_HERE)


class Check(BaseModel):
    """A verification of one offer on a device of this machine.

    Attributes:
        kernel: The kernel.
        offer: Hash of the offer, from `Check.digest`.
        device: The vendor's name of the device.
        capability: Its compute capability.
        versions: Versions of the kernel's distribution and packages, from `versions_of`.
        passed: Whether all its problems were right.
        message: The failure, or an empty text.
        finished: Time of the check, in UTC, as ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kernel: str
    offer: str
    device: str
    capability: tuple[int, int]
    versions: dict[str, str]
    passed: bool
    message: str = ""
    finished: str

    @staticmethod
    @lru_cache(maxsize=1024)
    def digest(offer: Offer) -> str:
        """16 hex digits of everything that an offer promises, without its devices, its packages and rare limits."""
        limits = {"heads_per_mask", "min_block_rows", "max_sizes"}
        text = offer.model_dump_json(exclude={"cpu", "verified_on", "expected_on", "requires", *limits})
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def counts(self) -> bool:
        """Whether the packages still have the versions of the check, and editable ones the sources."""
        here = {name: _version(name) for name in self.versions}
        # A check without a digest of the sources counts for any sources of the version.
        return all(noted in (here[name], here[name].partition(_SOURCES)[0]) for name, noted in self.versions.items())


def standing(kernel: str, offer: Offer, device: Device) -> Standing:
    """The standing of a kernel's offer on a device. Checks of this machine count only for a device with a name."""
    if device.kind == "cpu":
        return Standing.VERIFIED if offer.cpu else Standing.NOT_OFFERED
    capability = device.capability_text or "0.0"
    if _covers(offer.verified_on, capability):
        return Standing.VERIFIED
    if not _covers(offer.expected_on, capability):
        return Standing.NOT_OFFERED
    check = check_of(kernel, offer, device)
    if check is None:
        return Standing.EXPECTED
    return Standing.VERIFIED_HERE if check.passed else Standing.FAILED_HERE


@cache
def _covers(capabilities: str | None, capability: str) -> bool:
    return capabilities is not None and SpecifierSet(capabilities).contains(capability)


def check_of(kernel: str, offer: Offer, device: Device) -> Check | None:
    """The last check of an offer on a device of this machine, if it counts for the installed packages."""
    if not device.name or device.capability is None:
        return None
    check = _read(*verified_stamp()).get((kernel, Check.digest(offer), device.name, device.capability))
    return check if check is not None and check.counts else None


def versions_of(manifest: KernelManifest, offer: Offer, distributions: Iterable[str]) -> dict[str, str]:
    """The versions that a check of an offer depends on: of the kernel's distributions and of required packages.

    A package that is not installed has an empty one.
    """
    required = (wanted.name for text in (*manifest.requires, *offer.requires) for wanted in alternatives(text))
    return {name: _version(name) for name in ("torch", *distributions, *required)}


def _version(distribution: str) -> str:
    """The installed version, with a digest of the sources of an editable package.

    PyTorch has only its minor version: a patch of it changes no kernel's interface.
    """
    version, digest = installed_version(distribution) or "", sources_digest(distribution)
    if distribution == "torch":
        return ".".join(version.split(".")[:2])
    return f"{version}{_SOURCES}{digest}" if digest else version


def verified_path() -> Path:
    """The path of this machine's checks."""
    return Path(os.environ.get("LONGCA_VERIFIED") or platformdirs.user_data_path("longca") / "verified.jsonl")


def note_check(check: Check) -> None:
    """Adds a check to the file."""
    path = verified_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{check.model_dump_json()}\n")  # a line that was torn does not hide this one


def verified_stamp() -> tuple[str, int, int, int]:
    """The state of the file. Verdicts that were computed with another state may be out of date."""
    path = verified_path()
    try:
        status = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=1)
def _read(path: str, *_changed: int) -> dict[tuple[str, str, str, tuple[int, int]], Check]:
    """The last check of each offer and device. A line that is no check verifies nothing."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return {}
    found = {}
    for line in filter(None, lines):
        try:
            check = Check.model_validate_json(line)
        except ValidationError:
            continue
        found[check.kernel, check.offer, check.device, check.capability] = check
    return found
