"""Mixes: each problem by the kernel that is predicted to be fastest, against attention by a dense matrix."""

from dataclasses import replace

import pytest
import torch

import longca
from longca import Device, Problem, masks, plugins
from longca.errors import RequestError, UnknownNameError
from longca.kernels.mix import Mix
from longca.masks import Form

from .cases import inputs, pattern_mask, problem, run, run_in_parts, truth
from .reference import BOUNDS, assert_close
from .toys import measured

MIX = "naive|sdpa"

#: A kernel with a forward for causal masks, and one with a backward for all masks.
HALVES = """
@hookimpl
def provide_kernel():
    return [
        kernel("ahead", offer("causal")),
        kernel("back", offer("row_intervals", forward=False, backward="external", unequal_lengths=True)),
    ]
"""


@pytest.fixture(autouse=True)
def history(tmp_path, monkeypatch):
    """This machine's evidence, of which there is none."""
    monkeypatch.setenv("LONGCA_HISTORY", str(tmp_path / "history.jsonl"))


def asked(pattern="causal", direction="backward"):
    mask = pattern_mask(pattern)
    return problem(mask, inputs(mask, 4, 2), direction)


def measure(fast, slow, **times):
    """Evidence that one kernel is faster, in both directions or as `times` says."""
    forms = {"naive": Form.ROW_INTERVALS, "sdpa": Form.CAUSAL}
    for direction in ("forward", "backward"):
        for name, seconds in ((fast, 1e-3), (slow, 2e-3)):
            given = asked(direction=direction)
            measured(name, times.get(f"{name}_{direction}", seconds), given, forms[name])


@pytest.mark.parametrize("pattern", ["full", "causal", "causal_document", "shared_question"])
def test_results_and_gradients_are_the_references(pattern):
    mask = pattern_mask(pattern)
    given = inputs(mask, 8, 2)
    mix = Mix(longca.registry(), MIX)
    assert_close(run(mix, mask, given), truth(mask, given), BOUNDS[torch.float64])
    assert_close(run_in_parts(mix, mask, given, (12, 25)), truth(mask, given), BOUNDS[torch.float64])


@pytest.mark.parametrize(("fast", "slow"), [("naive", "sdpa"), ("sdpa", "naive")])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_evidence_decides(fast, slow, direction):
    measure(fast, slow)
    plan = Mix(longca.registry(), MIX).plan(asked(direction=direction))
    assert plan.kernel == fast


def test_a_step_in_training_may_take_a_pair():
    measure("naive", "sdpa", sdpa_backward=1e-4)
    plan = Mix(longca.registry(), MIX).plan(asked())
    assert plan.kernel == "naive+sdpa"
    assert plan.form_text == "row_intervals + causal"


def test_without_evidence_the_first_valid_kernel_is_taken():
    assert Mix(longca.registry(), "sdpa|naive").plan(asked()).kernel == "sdpa"


def test_a_plan_is_the_taken_kernels():
    given, registry = asked("shared_question"), longca.registry()
    plan, alone = Mix(registry, "sdpa|naive").plan(given), registry.load("sdpa").plan(given)
    assert plan.problem is given
    assert (plan.form, plan.form_text, plan.backend) == (alone.form, alone.form_text, f"sdpa: {alone.backend}")
    assert (plan.metadata_bytes, plan.list_bytes) == (alone.metadata_bytes, alone.list_bytes)
    assert plan.metadata_bytes > 0


def test_attention_takes_a_mix_by_its_name():
    mask = masks.build("causal", 40)
    qkv = [x.requires_grad_() for x in inputs(mask, 4, 2)[:3]]
    out, expected = (longca.attention(*qkv, mask, kernel=kernel) for kernel in (MIX, "naive"))
    assert torch.allclose(out, expected)
    assert all(map(torch.allclose, torch.autograd.grad(out.sum(), qkv), torch.autograd.grad(expected.sum(), qkv)))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_step_takes_a_kernel_or_in_training_a_pair_as_if_each_was_asked_by_itself(direction):
    registry = plugins.registry()
    step = Problem(mask=masks.build("causal", 64), heads_q=4, device=Device("cpu"), direction=direction, composed=True)
    names = ["naive", "sdpa"] if direction == "forward" else ["naive", "sdpa", "naive+sdpa", "sdpa+naive"]
    assert registry.ways("naive|sdpa", step) == {name: registry.resolve(name, step) for name in names}


def test_a_forward_and_a_backward_alone_are_a_way_together(open_registry):
    registry = open_registry(halves=HALVES)
    step = replace(asked(), dtype="float32")
    verdicts = registry.ways("ahead|back", step)
    assert [name for name, verdict in verdicts.items() if verdict] == ["ahead+back"]
    verdict = registry.resolve("ahead|back", step)
    assert verdict.valid
    assert verdict.form == "causal", "that of forwards, whose results are verified"
    assert registry.resolve("ahead|back", step.with_mask(pattern_mask("full"))).reasons


def test_a_step_that_no_kernel_takes_is_refused_with_all_reasons(rounds):
    mask = masks.build("causal", 64)
    given = Problem(mask=mask, heads_q=4, device=Device("cpu"))
    layout = rounds.layout("round", given, {"ring": 2}, "halves")
    found = rounds.resolve("plain|fussy", given, layout)
    assert found.valid, "plain takes steps that fussy refuses"
    refused = rounds.resolve("plain|fussy", replace(given, dtype="float16"), layout)
    said = " ".join(map(str, refused.reasons))
    assert "plain takes bfloat16, float32; float16 was asked." in said
    assert "fussy takes bfloat16, float32; float16 was asked." in said
    assert "every step needs an offer of one of the kernels; rank 0 of 2 needs it" in said


def test_what_is_refused_is_said():
    q, k, v, _ = inputs(masks.build("causal", 40), 4, 2)
    mask = masks.build("causal", 40)
    with pytest.raises(UnknownNameError, match=r"unknown kernel 'sdp'\. Did you mean sdpa"):
        longca.attention(q, k, v, mask, kernel="naive|sdp")
    with pytest.raises(RequestError, match=r"is a mix of kernels, each with a manifest; name naive or sdpa"):
        longca.registry().manifest(MIX)
