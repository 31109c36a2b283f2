"""What `auto` does with a kernel that fails its check. `tests/bench/cli/test_unverified.py` has the check itself."""

from dataclasses import replace

import pytest

from longca import masks
from longca.adviser import Choice
from longca.errors import VerificationError
from longca.kernels.unverified import check_unverified, choose_checked
from longca.manifests import Device, Offer, Problem
from longca.manifests.verified import Check, note_check

from ..fake_manifests import fake_manifest
from .toys import Toys

A100 = Device("cuda", (8, 0), 2**34, "Fake A100")
OFFER = Offer(form="causal", dtypes=("bfloat16",), expected_on=">=8.0", metadata="O(1)")
PROBLEM = Problem(mask=masks.build("causal", 64), heads_q=4, device=A100, allow_unverified=True)


def note(passed, message=""):
    about = {"device": A100.name, "capability": A100.capability, "versions": {}, "finished": "2026-01-01"}
    note_check(Check(kernel="fake", offer=Check.digest(OFFER), passed=passed, message=message, **about))


def test_auto_takes_a_verified_kernel_if_its_choice_failed_here(caplog):
    registry, asked = Toys(fake_manifest(OFFER)), []

    def choose(problem):
        asked.append(problem)
        return Choice("fake" if problem.allow_unverified else "naive", "the choice", "it is first")

    note(passed=False, message="dq is wrong")
    with pytest.raises(VerificationError, match=r"fake is not verified on Fake A100 .*: dq is wrong\. Take"):
        check_unverified(registry, registry.resolve("fake", PROBLEM), PROBLEM)
    assert choose_checked(registry, PROBLEM, choose).kernel == "naive"
    assert asked == [PROBLEM, replace(PROBLEM, allow_unverified=False)]
    assert "fake is not verified on Fake A100 (compute capability 8.0): dq is wrong" in caplog.text
    note(passed=True)
    assert choose_checked(registry, PROBLEM, choose).kernel == "fake"
