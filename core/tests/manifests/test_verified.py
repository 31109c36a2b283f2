"""Offers that nobody verified on a device: refused, allowed, and verified on this machine."""

import json
from dataclasses import replace

import pytest

from longca import masks, plugins
from longca.manifests import Device, KernelManifest, Offer, Problem, packages, resolve_manifest
from longca.manifests import verified as module
from longca.manifests.verified import Check, Standing, note_check, standing, verified_path, versions_of

A100 = Device("cuda", (8, 0), 80 * 10**9, "NVIDIA A100")
H200 = Device("cuda", (9, 0), 140 * 10**9, "NVIDIA H200")
USUAL = {"form": "causal", "dtypes": ("bfloat16",), "backward": "external", "metadata": "O(1)"}
NEW = Offer(**USUAL, verified_on="==9.0", expected_on=">=8.0,<13")


def manifest(*offers, requires=(), name="fake"):
    about = {"title": "Fake", "upstream": "-", "license": "MIT", "family": "fake", "implementation": "fake:Fake"}
    return KernelManifest(name=name, offers=offers or (NEW,), requires=requires, **about)


def problem(device=A100, **fields):
    return Problem(mask=masks.build("causal", 64), heads_q=4, device=device, **fields)


def check(kernel=manifest(), offer=NEW, passed=True, **fields):
    about = {"device": A100.name, "capability": A100.capability, "finished": "2026-01-01T00:00:00+00:00"}
    versions = versions_of(kernel, offer, ["longca-core"])
    fields = {"kernel": kernel.name, "offer": Check.digest(offer), "versions": versions, "passed": passed} | fields
    return Check(**{**about, **fields})


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGCA_VERIFIED", str(tmp_path / "data" / "verified.jsonl"))
    assert verified_path() == tmp_path / "data" / "verified.jsonl"
    return verified_path()


def code(kernel=manifest(), **fields):
    return [reason.code for reason in resolve_manifest(kernel, problem(**fields)).reasons]


def test_a_device_on_which_nobody_verified_it_is_refused_with_advice():
    (reason,) = resolve_manifest(manifest(), problem()).reasons
    assert reason.code == "unverified"
    assert "fake should run on this device, and nobody verified it there; its compute capability is 8.0." in str(reason)
    assert "`longca verify --unverified --kernel NAME`" in reason.advice
    assert "allow_unverified=True" in reason.advice


def test_other_devices_are_refused_as_ever():
    assert code(device=H200) == []
    assert code(device=Device("cuda", (13, 0))) == ["device"]
    assert code(device=Device("cuda")) == ["device"]
    (reason,) = resolve_manifest(manifest(), problem(Device("cpu"))).reasons
    assert reason.offered == "fake runs on CUDA devices of compute capability ==9.0 (verified) or >=8.0,<13 (expected)"


def test_a_problem_may_allow_it():
    verdict = resolve_manifest(manifest(), problem(allow_unverified=True))
    assert verdict.unverified
    assert verdict.offer is NEW
    assert not resolve_manifest(manifest(), problem(device=H200, allow_unverified=True)).unverified
    assert code(dtype="float16") == ["unverified", "dtype"]
    assert code(allow_unverified=True, dtype="float16") == ["dtype"]


def test_a_verified_offer_comes_before_one_that_nobody_verified():
    old = Offer(**USUAL, verified_on=">=8.0")
    verdict = resolve_manifest(manifest(NEW, old), problem(allow_unverified=True))
    assert (verdict.offer, verdict.unverified) == (old, False)


def test_a_check_on_this_machine_counts_at_once_and_for_its_device_alone():
    assert code() == ["unverified"]
    note_check(check())
    assert code() == []
    assert not resolve_manifest(manifest(), problem()).unverified
    assert standing("fake", NEW, A100) is Standing.VERIFIED_HERE
    assert standing("fake", NEW, H200) is Standing.VERIFIED
    for other in (replace(A100, name="NVIDIA A30"), replace(A100, name=""), replace(A100, capability=(8, 6))):
        assert standing("fake", NEW, other) is Standing.EXPECTED
    assert standing("other", NEW, A100) is Standing.EXPECTED


def test_a_failure_is_told_and_does_not_forbid_to_try_again():
    note_check(check(passed=False, message="bfloat16 forward: dq is wrong"))
    assert standing("fake", NEW, A100) is Standing.FAILED_HERE
    (reason,) = resolve_manifest(manifest(), problem()).reasons
    assert "fake should run on this device, and its verification here failed (bfloat16 forward: dq is wrong)" in str(
        reason
    )
    assert resolve_manifest(manifest(), problem(allow_unverified=True)).unverified
    note_check(check())
    assert code() == []


@pytest.mark.parametrize(
    ("package", "before", "after", "still"),
    [
        ("nvidia-fake", "1.0", "1.1", False),
        ("nvidia-fake", None, "1.0", False),
        ("longca-core", "0.1.0", "0.2.0", False),
        ("torch", "2.11.0+cu130", "2.11.1+cu128", True),
        ("torch", "2.11.0", "2.12.0", False),
    ],
)
def test_other_versions_make_it_unverified_again(monkeypatch, package, before, after, still):
    def install(version):
        real = packages.installed_version
        monkeypatch.setattr(module, "installed_version", lambda name: version if name == package else real(name))

    kernel = manifest(requires=("nvidia-fake>=1 | torch",))
    install(before)
    note_check(check(kernel))
    assert standing("fake", NEW, A100) is Standing.VERIFIED_HERE
    install(after)
    assert (standing("fake", NEW, A100) is Standing.VERIFIED_HERE) is still


def test_lines_that_are_no_checks_verify_nothing(path):
    good = check().model_dump(mode="json")
    bad = ({**good, "passed": "maybe"}, {**good, "offer": "../x"}, {**good, "colour": "red"}, {"kernel": "fake"}, [])
    path.parent.mkdir()
    path.write_text("".join(json.dumps(line) + "\n" for line in bad) + "\x00\n{", "utf-8")
    assert code() == ["unverified"]
    note_check(check())
    assert code() == [], "a line that was torn does not hide the next one"


def test_pairs_and_machines_with_every_package_know_it_too(monkeypatch):
    back = manifest(NEW, name="back", requires=("not-there>=1",))
    assert resolve_manifest(back, problem(allow_unverified=True), anywhere=True).unverified
    monkeypatch.setenv("LONGCA_PLUGINS", "")
    registry = plugins.Registry()
    pair = (manifest(Offer(**USUAL, verified_on=">=8.0"), name="ahead"), manifest(NEW, name="other"))
    asked = problem(direction="backward")
    (reason,) = registry.resolve(pair, asked).reasons
    assert (reason.code, reason.offered.split(":")[0]) == ("unverified", "backward half")
    verdict = registry.resolve(pair, replace(asked, allow_unverified=True))
    assert (verdict.valid, verdict.unverified) == (True, True)
    assert [half.unverified for half in verdict.halves] == [False, True]


def test_other_sources_of_an_editable_package_make_it_unverified_again(monkeypatch):
    def edit(digest):
        monkeypatch.setattr(module, "sources_digest", lambda name: digest if name == "longca-core" else "")

    edit("")
    note_check(check())
    edit("one")
    assert standing("fake", NEW, A100) is Standing.VERIFIED_HERE, "a check that names no sources counts for any"
    note_check(check())
    assert standing("fake", NEW, A100) is Standing.VERIFIED_HERE
    edit("other")
    assert standing("fake", NEW, A100) is Standing.EXPECTED
