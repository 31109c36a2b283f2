"""What is declared is what was measured: every offer of this repository's kernels against its record of a GPU.

The records are files of `longca verify --json`, and the newest of an offer counts. That of `naive`, which is PyTorch's
arithmetic alone, is of a CPU. An offer that is changed, added or taken away, in any of its fields, no longer has its
record, and a record that is of no offer fails too: both mean that the kernel is to be verified again.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from longca import Offer, registry
from longca.manifests.pairs import split
from longca_bench.conformance.offer_variant import OVERTAKEN

from .imports import DISTRIBUTIONS, ROOT

CAPABILITY = "9.0"
#: Kernels of PyTorch's own operators, which PyTorch verifies on its devices.
PYTORCH = {"naive", "sdpa", "online"}

Row = dict[str, Any]


def complaints(offers: Iterable[Offer], rows: Iterable[Row]) -> Iterator[str]:
    """Where a kernel's offers and its record are not the same.

    Args:
        offers: What its manifest offers.
        rows: Its rows of the record.
    """
    declared = {(_text(offer), t, d): offer for offer in offers for t, d in _asked(offer)}
    recorded = {_key(row): row for row in rows}
    for key, offer in declared.items():
        name = f"{offer.form} {key[1]} {key[2]}"
        if not _was_verified(offer) and key not in recorded:
            continue
        if key not in recorded:
            yield f"{name} is declared, and has no record: {key[0]}"
        elif complaint := _complaint(offer, recorded[key]):
            yield f"{name}: {complaint}"
    for key, row in recorded.items():
        if key not in declared:
            yield f"{row['form']} {key[1]} {key[2]} is recorded, and declared no longer: {key[0]}"


def _complaint(offer: Offer, row: Row) -> str:
    if row["passed"]:
        return "it was verified on no mask" if not row["masks"] else ""
    reason = row["skipped"]
    if not reason:
        return f"it failed: {row['error'] or row['failures']}"
    if not _was_verified(offer) or reason == OVERTAKEN:
        return ""
    return f"it was not verified: {reason}"


def _was_verified(offer: Offer) -> bool:
    """Whether an offer says that it was verified on the device of the record."""
    return offer.verified_on is not None and SpecifierSet(offer.verified_on).contains(CAPABILITY)


def _asked(offer: Offer) -> Iterator[tuple[str, str]]:
    for dtype in offer.dtypes:
        for direction in offer.directions:
            yield dtype, direction


#: The fields of the devices. Records name the capabilities `cuda` that an offer had before it had two ranges.
_DEVICES = ("cuda", "verified_on", "expected_on")
#: Limits that hooks refused by when most records were made.
_LIMITS = ("heads_per_mask", "min_block_rows", "max_sizes")


def _text(offer: Any) -> str:
    """An offer, or what a record has of one, as text that is the same for equal offers on whatever CUDA devices."""
    try:
        fields = offer if isinstance(offer, Offer) else {**offer, "verified_on": ">=0.0"}
        whole = Offer.model_validate({name: value for name, value in dict(fields).items() if name != "cuda"})
        text = whole.model_dump(mode="json", exclude={*_DEVICES, *_LIMITS})
    except (ValidationError, TypeError):
        text = offer
    return json.dumps(text, sort_keys=True)


@cache
def _record() -> dict[str, list[Row]]:
    """The newest row of each offer of each single kernel. Earlier records are a list of offers, without a date."""
    dated: list[tuple[str, str, list[Row]]] = []
    for path in ROOT.glob("results/*/verify*.json"):
        for kernel, each in json.loads(path.read_text(encoding="utf-8")).items():
            finished, offers = ("", each) if isinstance(each, list) else (each["finished"], each["offers"])
            if not split(kernel):
                dated.append((finished, kernel, offers))
    found: dict[str, dict[tuple[str, str, str], Row]] = {}
    for _, kernel, offers in sorted(dated, key=lambda each: each[0]):
        found.setdefault(kernel, {}).update((_key(row), row) for row in offers)
    return {kernel: list(rows.values()) for kernel, rows in found.items()}


def _key(row: Row) -> tuple[str, str, str]:
    return _text(row.get("offer")), row["dtype"], row["direction"]


def _names() -> set[str]:
    """The distributions with an entry point. A kit has none."""
    texts = ((path / "pyproject.toml").read_text(encoding="utf-8") for path in DISTRIBUTIONS)
    projects = [tomllib.loads(text)["project"] for text in texts]
    return {canonicalize_name(project["name"]) for project in projects if "entry-points" in project}


def _kernels() -> list[str]:
    """The kernels of this repository's distributions."""
    found, ours = registry(), _names()
    return [name for name in found.kernels if canonicalize_name(found.provider(name).distribution) in ours]


def test_every_distribution_is_installed():
    assert _names() <= {canonicalize_name(plugin.distribution) for plugin in registry().plugins}


@pytest.mark.parametrize("kernel", _kernels())
def test_what_is_declared_was_verified(kernel):
    assert kernel in _record(), f"{kernel} has no record: run `longca verify --json` on an H200 or an H100"
    found = list(complaints(registry().manifest(kernel).offers, _record()[kernel]))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kernel", sorted(set(_kernels()) - PYTORCH))
def test_no_other_device_is_said_to_be_verified(kernel):
    devices = {offer.verified_on for offer in registry().manifest(kernel).offers}
    assert devices <= {None, f"=={CAPABILITY}"}, "all records are of Hopper GPUs; name other devices in expected_on"


def test_no_record_is_of_a_kernel_that_is_gone():
    assert set(_record()) == set(_kernels())
