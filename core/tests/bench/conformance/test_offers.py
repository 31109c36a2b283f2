from dataclasses import replace

import pytest

from longca import plugins
from longca.kernels.pair import Pair
from longca.manifests import Backward, Device, Offer
from longca_advice.history import history
from longca_bench.cli.verification_json import _check_as_json
from longca_bench.conformance.isolation import Isolation
from longca_bench.conformance.kept_verdicts import doubt
from longca_bench.conformance.offer_variant import OfferVariant, offer_variants
from longca_bench.conformance.offers import OfferCheck, verify_variant
from longca_bench.verification.findings import Finding
from longca_builtin.naive import Naive

from .bad_kernels import KERNELS

CPU, HERE = Device("cpu"), Isolation(isolated=False)


@pytest.fixture(scope="module")
def checks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", "")
        registry = plugins.Registry()
    # The conformance suite has the other dtypes.
    found = {
        name: [s for s in offer_variants(registry, name, CPU) if s.dtype == "float32"] for name in ("naive", "sdpa")
    }
    return {name: [verify_variant(variant) for variant in some] for name, some in found.items()}


def first(core, kernel):
    return verify_variant(next(offer_variants(core, kernel, CPU, HERE)))


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_every_offer_for_this_device_passes(checks, kernel):
    for check in checks[kernel]:
        if check.offer.cpu:
            assert check.passed, (check.offer.form, check.dtype, check.direction, check.failures, check.error)
            assert check.worst is not None
        else:
            assert "runs on CUDA devices" in check.skipped


def test_composition_is_verified_where_it_is_declared(checks):
    worst = [check.worst[1].tensor for check in checks["naive"] if check.direction == "backward" and check.worst]
    assert checks["naive"][0].offer.backward is Backward.EXTERNAL
    assert any(tensor.endswith("as a part") for tensor in worst)


def test_a_record_of_it_has_the_whole_offer(checks):
    check = checks["sdpa"][0]
    assert Offer.model_validate(_check_as_json(check)["offer"]) == check.offer


@pytest.mark.parametrize(
    ("kernel", "parts"),
    [
        ("sdpa", ("empty rows", "77 × 203", "one token", "8:1 heads", "3:3 heads", "8 masks", "variable blocks")),
        ("naive", ("8:1 heads of 128", "3:3 heads of 43", "4 runs")),
    ],
)
def test_awkward_problems_are_among_them(checks, kernel, parts):
    masks = {mask for check in checks[kernel] for mask in check.masks}
    assert [part for part in parts if not any(part in mask for mask in masks)] == []


def test_a_pair_is_verified_by_the_offers_of_its_backward_half(core):
    variant = next(s for s in offer_variants(core, "naive+sdpa", CPU) if s.offer.cpu and s.offer.form == "causal")
    check = verify_variant(variant)
    assert check.passed, (check.failures, check.error, check.skipped)


def test_a_pair_whose_halves_do_not_fit_says_why(core):
    alone = core.manifest("sdpa").offers[0].model_copy(update={"backward": Backward.OWN})
    core.kernels["sdpa"] = core.manifest("sdpa").model_copy(update={"offers": (alone,)})
    check = verify_variant(OfferVariant(core, "naive+sdpa", alone, "float32", "backward", CPU))
    assert not check.passed
    assert "backward half: sdpa's backward takes only its own forward's lse" in check.skipped


@pytest.mark.parametrize("promised", [True, False])
def test_a_pair_promises_equal_bits_where_both_halves_do(core, promised):
    offers = tuple(offer.model_copy(update={"deterministic": promised}) for offer in core.manifest("naive").offers)
    core.kernels["naive"] = core.manifest("naive").model_copy(update={"offers": offers})
    variant = next(s for s in offer_variants(core, "naive+sdpa", CPU, HERE) if s.offer.cpu and s.offer.form == "causal")
    assert variant.offer.deterministic
    check = verify_variant(variant)
    assert check.passed, (check.failures, check.error, check.skipped)
    assert any("runs" in mask for mask in check.masks) == promised


def test_a_wrong_backward_is_found_in_a_pair(core, monkeypatch):
    class Doubled(Naive):
        def backward(self, *arguments, **buffers):
            dq, dk, dv = super().backward(*arguments, **buffers)
            return dq.mul_(2), dk, dv

    loaded = {"sdpa": Naive(), "naive": Doubled()}
    monkeypatch.setattr(core, "load", lambda name: Pair(loaded["sdpa"], lambda: loaded["naive"]))
    check = verify_variant(
        OfferVariant(core, "sdpa+naive", core.manifest("naive").offers[0], "float32", "backward", CPU, HERE)
    )
    assert {finding.tensor.split()[0] for _, finding in check.failures} == {"dq"}, check.error


def test_a_kernel_that_raises_is_a_finding(core, monkeypatch):
    class Raises(Naive):
        def forward(self, *_arguments, **_buffers):
            raise RuntimeError("no such tile")

    monkeypatch.setattr(core, "load", lambda name: Raises())
    check = first(core, "naive")
    assert not check.passed
    assert (str(check.status), "no such tile" in check.error) == ("error", True)
    assert "77 × 203" in check.error, "the smallest problem of its form comes first"


def test_a_plan_in_another_form_than_the_offer_is_a_finding(core, monkeypatch):
    monkeypatch.setattr(core, "load", lambda name: KERNELS["plans_another_form"]())
    check = first(core, "naive")
    assert (str(check.status), "the plan's form is dense" in check.error) == ("wrong", True)


@pytest.mark.parametrize(("complete", "stays"), [(False, True), (True, False)])
def test_an_interrupted_verification_ends_no_earlier_verdict(tmp_path, monkeypatch, complete, stays):
    monkeypatch.setenv("LONGCA_HISTORY", str(tmp_path / "evidence.jsonl"))
    known, device = plugins.registry(), Device("cpu")
    passed = OfferCheck("naive", known.manifest("naive").offers[0], "forward", "float32", masks=["causal"])
    finding = Finding("out", False, 1.0, 0.0, 0.1, 0, 0)
    doubt(known, "naive", device, [replace(passed, failures=[("causal", finding)])], complete=complete)
    assert len(history().wrong) == 1
    doubt(known, "naive", device, [passed], complete=complete)
    assert len(history().wrong) == stays
