"""What happens before an unverified offer runs. `tests/bench/cli/test_unverified.py` has the whole way."""

from dataclasses import replace

import pytest
import torch

from longca import masks
from longca.errors import RecordError, VerificationError
from longca.kernels import verify_first as module
from longca.kernels.verify_first import choose_first, verify_first
from longca.manifests import Device, Offer, Problem
from longca.manifests.verified import Check, note_check
from longca_advice.announced import Choice

from ..fake_manifests import fake_manifest
from .toys import Toys

A100 = Device("cuda", (8, 0), 2**34, "Fake A100")
OFFER = Offer(form="causal", dtypes=("bfloat16",), expected_on=">=8.0", metadata="O(1)")
PROBLEM = Problem(mask=masks.build("causal", 64), heads_q=4, device=A100, allow_unverified=True)


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGCA_VERIFIED", str(tmp_path / "verified.jsonl"))
    monkeypatch.setenv("LONGCA_PLUGINS", "")
    return tmp_path / "verified.jsonl"


@pytest.fixture
def registry():
    toys = Toys(fake_manifest(OFFER))
    toys.disabled = frozenset()
    return toys


def note(passed, message=""):
    about = {"device": A100.name, "capability": A100.capability, "versions": {}, "finished": "2026-01-01"}
    note_check(Check(kernel="fake", offer=Check.digest(OFFER), passed=passed, message=message, **about))


def test_a_verified_offer_needs_nothing(registry, path):
    note(passed=True)
    verify_first(registry, registry.resolve("fake", PROBLEM), A100)
    assert not path.with_suffix(".lock").exists()


def test_an_earlier_failure_is_told_at_once(registry):
    note(passed=False, message="causal: dq is wrong")
    with pytest.raises(VerificationError, match=r"fake is not verified on Fake A100 .*: causal: dq is wrong\. Take"):
        verify_first(registry, registry.resolve("fake", PROBLEM), A100)


def test_another_process_that_cannot_verify_it_is_quoted(registry):
    """The kernel is in this process's registry alone."""
    with pytest.raises(VerificationError, match="--kernel fake` said: error: unknown kernel 'fake'"):
        verify_first(registry, registry.resolve("fake", PROBLEM), A100)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(registry, path, monkeypatch):
    path.write_text("", "utf-8")
    monkeypatch.setenv("LONGCA_VERIFIED", str(path / "below" / "verified.jsonl"))
    with pytest.raises(RecordError, match="Set LONGCA_VERIFIED to a path that can be written"):
        verify_first(registry, registry.resolve("fake", PROBLEM), A100)


def test_auto_takes_a_verified_kernel_if_its_choice_fails(registry, caplog):
    note(passed=False, message="dq is wrong")
    asked = []

    def choose(problem):
        asked.append(problem)
        return Choice("fake" if problem.allow_unverified else "naive", "the choice", "it is first")

    assert choose_first(registry, PROBLEM, choose).kernel == "naive"
    assert asked == [PROBLEM, replace(PROBLEM, allow_unverified=False)]
    assert "fake is not verified on Fake A100 (compute capability 8.0): dq is wrong" in caplog.text
    note(passed=True)
    assert choose_first(registry, PROBLEM, choose).kernel == "fake"


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, "2"), ("", "2"), ("5,4,7", "7"), ("0,1,GPU-ab12", "GPU-ab12")]
)
def test_the_other_process_sees_this_gpu_alone(monkeypatch, visible, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert module._environment()["CUDA_VISIBLE_DEVICES"] == expected
