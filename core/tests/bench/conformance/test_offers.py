from dataclasses import replace

import pytest

from longca import plugins
from longca.manifests import Backward, Device
from longca_advice.history import history
from longca_bench.conformance.isolation import Isolation
from longca_bench.conformance.kept_verdicts import doubt
from longca_bench.conformance.offer_variant import OfferVariant, offer_variants
from longca_bench.conformance.offers import OfferCheck, verify_variant
from longca_bench.conformance.oracle import verify_problem
from longca_bench.verification.findings import Finding
from longca_builtin.naive import Naive

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


def test_a_kernel_that_ignores_its_soft_cap_is_wrong(core, monkeypatch):
    plan = Naive.plan
    monkeypatch.setattr(Naive, "plan", lambda self, problem: plan(self, replace(problem, softcap=None)))
    variant = next(offer_variants(core, "naive", CPU, HERE))
    capped = [problem for _, problem in variant.problems() if problem.softcap]
    assert capped
    assert not any(verify_problem(variant.kernel, problem, variant.offer).passed for problem in capped)


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


@pytest.mark.parametrize(("complete", "stays"), [(False, True), (True, False)])
def test_an_interrupted_verification_ends_no_earlier_verdict(complete, stays):
    known, device = plugins.registry(), Device("cpu")
    passed = OfferCheck("naive", known.manifest("naive").offers[0], "forward", "float32", masks=["causal"])
    finding = Finding("out", False, 1.0, 0.0, 0.1, 0, 0)
    doubt(known, "naive", device, [replace(passed, failures=[("causal", finding)])], complete=complete)
    assert len(history().wrong) == 1
    doubt(known, "naive", device, [passed], complete=complete)
    assert len(history().wrong) == stays
