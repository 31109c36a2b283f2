import pytest

from longca.builtin.naive import Naive
from longca.kernels.pair import Pair
from longca.manifests import Backward, Device, Offer
from longca_bench.cli.verify import _as_json
from longca_bench.conformance.offer_problems import offer_problems
from longca_bench.conformance.offers import offered, verify_kernel, verify_offer, verify_repeats

CPU = Device("cpu")


@pytest.fixture(scope="module")
def checks():
    from longca import plugins

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGCA_PLUGINS", "")
        registry = plugins.Registry()
    return {name: list(verify_kernel(registry, name, CPU)) for name in ("naive", "sdpa")}


@pytest.mark.parametrize("kernel", ["naive", "sdpa"])
def test_every_offer_for_this_device_passes(checks, kernel):
    for check in checks[kernel]:
        if check.offer.cpu:
            assert check.passed, (check.offer.form, check.dtype, check.direction, check.failures, check.error)
            assert check.worst is not None
        else:
            assert "runs on CUDA devices" in check.skipped


def test_awkward_problems_are_among_them(checks):
    masks = {mask for check in checks["sdpa"] for mask in check.masks}
    for part in ("empty rows", "77 × 203", "one token", "8:1 heads", "3:3 heads", "8 masks", "variable blocks"):
        assert any(part in mask for mask in masks), part


def test_composition_is_verified_where_it_is_declared(checks):
    worst = [check.worst[1].tensor for check in checks["naive"] if check.direction == "backward" and check.worst]
    assert checks["naive"][0].offer.backward is Backward.EXTERNAL
    assert any(tensor.endswith("as a part") for tensor in worst)


def test_a_record_of_it_has_the_whole_offer(checks):
    check = checks["sdpa"][0]
    assert Offer.model_validate(_as_json(check)["offer"]) == check.offer


def test_head_dims_and_repeats_are_among_them(checks):
    masks = {mask for check in checks["naive"] for mask in check.masks}
    for part in ("8:1 heads of 128", "3:3 heads of 43", "3 runs"):
        assert any(part in mask for mask in masks), part


def test_a_pair_is_verified_by_the_offers_of_its_backward_half(core):
    rows = offered(core, "naive+sdpa")
    assert {row[0] for row in rows} == set(core.manifest("sdpa").offers)
    assert {row[2] for row in rows} == {"backward"}
    offer, dtype, direction = next(row for row in rows if row[0].cpu and row[0].form == "causal")
    check = verify_offer(core, "naive+sdpa", offer, dtype, direction, CPU)
    assert check.passed, (check.failures, check.error, check.skipped)


def test_a_pair_whose_halves_do_not_fit_says_why(core):
    alone = core.manifest("sdpa").offers[0].model_copy(update={"backward": Backward.OWN})
    core.kernels["sdpa"] = core.manifest("sdpa").model_copy(update={"offers": (alone,)})
    check = verify_offer(core, "naive+sdpa", alone, "float32", "backward", CPU)
    assert not check.passed
    assert "backward half: sdpa's backward takes only its own forward's lse" in check.skipped


def test_a_wrong_backward_is_found_in_a_pair(core, monkeypatch):
    class Doubled(Naive):
        def backward(self, *arguments, **buffers):
            dq, dk, dv = super().backward(*arguments, **buffers)
            return dq.mul_(2), dk, dv

    loaded = {"sdpa": Naive(), "naive": Doubled()}
    monkeypatch.setattr(core, "load", lambda name: Pair(loaded["sdpa"], lambda: loaded["naive"]))
    check = verify_offer(core, "sdpa+naive", core.manifest("naive").offers[0], "float32", "backward", CPU)
    assert {finding.tensor.split()[0] for _, finding in check.failures} == {"dq"}, check.error


class Restless(Naive):
    """Off by an ulp in every other run."""

    calls = 0

    def forward(self, *arguments, **buffers):
        self.calls += 1
        out, lse = super().forward(*arguments, **buffers)
        return (out.mul_(1 + 2**-22) if self.calls % 2 else out), lse


def test_a_kernel_that_is_not_deterministic_is_a_finding(core):
    offer = core.manifest("naive").offers[-1]
    ((_, problem), *_), _ = offer_problems(core, "naive", offer, "float32", "backward", CPU)
    assert verify_repeats(Naive(), offer, problem).passed
    failed = {finding.tensor: finding.note for finding in verify_repeats(Restless(), offer, problem).failures}
    assert "out repeated" in failed
    assert "lse repeated" not in failed
    assert "other bits" in failed["out repeated"]


def test_a_kernel_that_raises_is_a_finding(core, monkeypatch):
    class Raises(Naive):
        def forward(self, *_arguments, **_buffers):
            raise RuntimeError("no such tile")

    monkeypatch.setattr(core, "load", lambda name: Raises())
    check = next(verify_kernel(core, "naive", CPU))
    assert not check.passed
    assert "no such tile" in check.error


def test_a_plan_in_another_form_than_the_offer_is_a_finding(core, monkeypatch):
    class Misplanned(Naive):
        def plan(self, problem):
            plan = super().plan(problem)
            plan.form = "dense"
            return plan

    monkeypatch.setattr(core, "load", lambda name: Misplanned())
    assert "the plan's form is dense" in next(verify_kernel(core, "naive", CPU)).error
