"""What is declared is what was measured: every offer of this repository's kernels against its record of a GPU.

The records are files of `longca verify --json`, and the newest of a kernel counts. An offer that is changed, added or
taken away, in any of its fields, no longer has its record, and a record that is of no offer fails too: both mean that
the kernel is to be verified again. A change of the kernel's code is no failure: the guide lists the kernels that were
verified with earlier code.
"""

from __future__ import annotations

import json
import re
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
from longca.masks import Form
from longca_bench.conformance.subject import OVERTAKEN

from .docs_pages import docs_module
from .imports import DISTRIBUTIONS, ROOT

CAPABILITY = "9.0"
#: Kernels of PyTorch's own operators, which PyTorch verifies on its devices.
PYTORCH = {"naive", "sdpa", "online"}
#: Where the guide says what was not verified, for want of a package on the machine.
UNVERIFIED = ROOT / "docs" / "verified.md"

Row = dict[str, Any]


def complaints(offers: Iterable[Offer], rows: Iterable[Row], unverified: str) -> Iterator[str]:
    """Where a kernel's offers and its record are not the same.

    Args:
        offers: What its manifest offers.
        rows: Its rows of the record.
        unverified: What the guide says of packages that the machine did not have.
    """
    declared = {(_text(offer), t, d): offer for offer in offers for t, d in _asked(offer)}
    recorded = {(_text(row.get("offer")), row["dtype"], row["direction"]): row for row in rows}
    for key, offer in declared.items():
        name = f"{offer.form} {key[1]} {key[2]}"
        if not _was_verified(offer) and key not in recorded:
            continue
        if key not in recorded:
            yield f"{name} is declared, and has no record: {key[0]}"
        elif complaint := _complaint(offer, recorded[key], unverified):
            yield f"{name}: {complaint}"
    for key, row in recorded.items():
        if key not in declared:
            yield f"{row['form']} {key[1]} {key[2]} is recorded, and declared no longer: {key[0]}"


def _complaint(offer: Offer, row: Row, unverified: str) -> str:
    if row["passed"]:
        return "it was verified on no mask" if not row["masks"] else ""
    reason = row["skipped"]
    if not reason:
        return f"it failed: {row['error'] or row['failures']}"
    if not _was_verified(offer) or reason == OVERTAKEN:
        return ""
    missing = re.findall(r"([\w.-]+)(?: \d\S*)? is (?:not )?installed", reason)
    if missing and all(f"`{name}`" in unverified for name in missing):
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


def _text(offer: Any) -> str:
    """An offer, or what a record has of one, as text that is the same for equal offers on whatever CUDA devices."""
    try:
        fields = offer if isinstance(offer, Offer) else {**offer, "verified_on": ">=0.0"}
        whole = Offer.model_validate({name: value for name, value in dict(fields).items() if name != "cuda"})
        text = whole.model_dump(mode="json", exclude=set(_DEVICES))
    except (ValidationError, TypeError):
        text = offer
    return json.dumps(text, sort_keys=True)


@cache
def _record() -> dict[str, list[Row]]:
    """The newest record of each single kernel."""
    return {name: found.offers for name, found in docs_module("verified_records").newest().items() if not split(name)}


def _unverified() -> str:
    page = UNVERIFIED.read_text(encoding="utf-8")
    found = re.search(r"^## What was not verified\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"{UNVERIFIED} has no section on what was not verified"
    return found[1]


def _waiting() -> set[str]:
    """Kernels that the guide says are waiting to be verified as they are declared."""
    line = re.search(
        r"^Waiting to be verified as they are declared now: (.*?)(?:\n\n|\Z)", _unverified(), re.DOTALL | re.MULTILINE
    )
    return set(re.findall(r"`(\w+)`", line[1])) if line else set()


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
    if kernel in _waiting():
        assert kernel not in _record(), f"{kernel} has a record: it waits no longer; say so in {UNVERIFIED.name}"
        return
    assert kernel in _record(), f"{kernel} has no record: run `longca verify --json` on an H200 or an H100"
    found = list(complaints(registry().manifest(kernel).offers, _record()[kernel], _unverified()))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("kernel", sorted(set(_kernels()) - PYTORCH))
def test_no_other_device_is_said_to_be_verified(kernel):
    devices = {offer.verified_on for offer in registry().manifest(kernel).offers}
    assert devices <= {None, f"=={CAPABILITY}"}, "all records are of Hopper GPUs; name other devices in expected_on"


def test_no_record_is_of_a_kernel_that_is_gone():
    assert set(_record()) | _waiting() == set(_kernels())


def test_records_that_name_their_device_are_of_this_capability():
    devices = [found.device for found in docs_module("verified_records").newest().values() if found.device]
    assert {".".join(map(str, device["capability"])) for device in devices} <= {CAPABILITY}


DIGESTS = {"one": "1" * 32, "two": "2" * 32}
ABOUT = {"finished": "2026-12-01T10:20:30+00:00", "device": {"name": "NVIDIA H100"}, "versions": {"torch": "2.11.0"}}


@pytest.mark.parametrize(
    ("recorded", "today", "said"),
    [
        ([], DIGESTS, "verified with earlier code, date not recorded"),
        ({**ABOUT, "offers": [], "sources": DIGESTS}, DIGESTS, "today's code"),
        ({**ABOUT, "offers": [], "sources": DIGESTS}, {"one": DIGESTS["one"]}, "today's code"),
        (
            {**ABOUT, "offers": [], "sources": DIGESTS},
            {**DIGESTS, "two": "3" * 32},
            "verified with earlier code: `two` changed",
        ),
        ({**ABOUT, "offers": [], "sources": {**DIGESTS, "two": None}}, DIGESTS, "not known: `two` has no digest"),
        ({**ABOUT, "offers": [], "sources": DIGESTS}, {"one": None}, "not known: `one` has no digest"),
    ],
)
def test_a_record_is_of_todays_code_only_if_its_digests_are(tmp_path, recorded, today, said):
    records = docs_module("verified_records")
    (tmp_path / "verify.json").write_text(json.dumps({"kernel": recorded}))
    found = records.read(tmp_path / "verify.json")["kernel"]
    assert records.standing(found, today) == said
    assert found.finished == ("" if isinstance(recorded, list) else ABOUT["finished"])


def test_the_newest_record_of_a_kernel_counts(tmp_path, monkeypatch):
    records = docs_module("verified_records")
    dated = {"offers": [], "sources": DIGESTS, **ABOUT}
    later = {**dated, "finished": "2026-12-02T00:00:00+00:00"}
    for name, found in {"a": {"one": dated, "two": []}, "b": {"one": later, "three": []}, "c": {"one": []}}.items():
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "verify.json").write_text(json.dumps(found))
    monkeypatch.setattr(records, "ROOT", tmp_path)
    newest = {kernel: (found.record, found.finished) for kernel, found in records.newest().items()}
    assert newest == {
        "one": ("results/b/verify.json", later["finished"]),
        "two": ("results/a/verify.json", ""),
        "three": ("results/b/verify.json", ""),
    }


def offer(**fields: Any) -> Offer:
    common = {"form": Form.FULL, "dtypes": ("bfloat16",), "verified_on": ">=8.0", "metadata": "O(1)"}
    return Offer.model_validate({**common, **fields})


def row(offered: Offer, **fields: Any) -> Row:
    passed = {"passed": True, "skipped": None, "error": None, "masks": ["full"], "failures": []}
    about = {"offer": offered.model_dump(mode="json"), "form": str(offered.form), "dtype": "bfloat16"}
    return {**about, "direction": "forward", **passed, **fields}


def skipped(offered: Offer, reason: str) -> Row:
    return row(offered, passed=False, skipped=reason, masks=[])


FULL = offer()
MISSING = "fast needs fast-lib>=2; fast-lib is not installed. Install it: pip install 'fast-lib>=2'"
TWO = "fast needs fast-lib>=2 | other; fast-lib 1.0 is installed, and other is not installed. Install it: …"


@pytest.mark.parametrize(
    ("offered", "found"),
    [
        (FULL, row(FULL)),
        (FULL, skipped(FULL, OVERTAKEN)),
        (FULL, skipped(FULL, MISSING)),
        (offer(verified_on="==9.0"), row(FULL)),
        (
            offer(cpu=True, verified_on=None),
            skipped(offer(cpu=True, verified_on=None), "fast runs on CPUs; this device is a GPU."),
        ),
        (offer(verified_on=">=10.0"), skipped(offer(verified_on=">=10.0"), "fast needs compute capability >=10.0; …")),
    ],
)
def test_what_is_all_right(offered, found):
    assert not list(complaints([offered], [found], "`fast-lib` was not there"))


@pytest.mark.parametrize(
    ("offered", "found", "complaint"),
    [
        ([FULL], [], "is declared, and has no record"),
        ([], [row(FULL)], "is recorded, and declared no longer"),
        ([offer(gqa=False)], [row(FULL)], "is declared, and has no record"),
        ([FULL], [row(FULL, offer=None)], "is declared, and has no record"),
        ([FULL], [row(FULL, masks=[])], "on no mask"),
        ([FULL], [row(FULL, passed=False, error="full: RuntimeError")], "it failed: full: RuntimeError"),
        ([FULL], [skipped(FULL, MISSING.replace("fast-lib", "other"))], "it was not verified"),
        ([FULL], [skipped(FULL, TWO)], "it was not verified"),
        ([FULL], [skipped(FULL, "no mask here has a form")], "it was not verified"),
        ([offer(dtypes=("bfloat16", "float16"))], [row(FULL)], "float16 forward is declared"),
        ([offer(verified_on="==9.0")], [skipped(FULL, "fast needs compute capability >=10.0")], "it was not verified"),
    ],
)
def test_what_is_not(offered, found, complaint):
    assert any(complaint in text for text in complaints(offered, found, "`fast-lib` was not there"))
