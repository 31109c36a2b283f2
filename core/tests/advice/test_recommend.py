"""recommend: what is asked is answered from evidence, the quickest first, and what does not fit says what would."""

import json
import subprocess
import sys

import pytest

from longca import masks
from longca.errors import RequestError, UnknownNameError
from longca_advice import recommend as module
from longca_advice.devices import RESERVED
from longca_advice.history import append
from longca_advice.recommend import recommend
from longca_advice.sources import sources

from .rows import row

CAUSAL = masks.build("causal", 8192)
SPARSE = masks.sample("uniform_block_sparse", 8192, block=64, kept=0.2, heads=8)


def ask(mask=CAUSAL, **options):
    return recommend(mask, **{"heads": (32, 8), "device": "h200", **options})


@pytest.mark.parametrize("mask", [CAUSAL, masks.sample("causal_document", 16384), SPARSE], ids=lambda mask: mask.label)
@pytest.mark.parametrize("training", [True, False])
def test_what_fits_comes_first_and_the_quickest_of_it(mask, training):
    found = ask(mask, training=training)
    assert len(found.choices) > 2
    assert [choice.fits is False for choice in found.choices] == sorted(
        choice.fits is False for choice in found.choices
    )
    order = [(choice.fits is False, choice.seconds.total) for choice in found.choices if not choice.proof.extrapolates]
    assert order == sorted(order)
    assert found.best == found.choices[0]
    for choice in found.choices:
        seconds = choice.seconds
        assert 0 < seconds.low < seconds.total < seconds.high
        assert seconds.total == pytest.approx(seconds.forward + (seconds.backward or 0))
        assert (choice.backward is not None) == (seconds.backward is not None) == training
        flops = 4 * 128 * 32 * mask.area / mask.heads * (3.5 if training else 1)
        assert choice.tflops == pytest.approx(1e-12 * flops / seconds.total)


def test_every_kernel_is_a_choice_unmeasured_or_refused():
    found = ask()
    alone = [choice.kernel for choice in found.choices if "+" not in choice.kernel]
    told = [*alone, *(one.kernel for one in found.unmeasured), *(one.kernel for one in found.refused)]
    assert sorted(told) == sorted(module.registry().kernels)
    assert all(refused.reasons for refused in found.refused)


def test_only_the_kernels_asked_for_are_looked_at():
    found = ask(kernels=("fa3", "vsa"))
    assert [choice.kernel for choice in found.choices] == ["fa3"]
    assert [one.kernel for one in found.refused] == ["vsa"]
    with pytest.raises(UnknownNameError, match="nobody"):
        ask(kernels=("nobody",))
    with pytest.raises(UnknownNameError, match="nobody"):
        ask(strategies=("nobody",))


def test_a_pair_that_is_named_is_a_choice_however_slow_it_is():
    found = ask(kernels=("fa4+fa3", "fa3"))
    assert [choice.kernel for choice in found.choices] == ["fa3", "fa4+fa3"]
    assert [choice.kernel for choice in ask(kernels=("fa4+fa3",)).choices] == ["fa4+fa3"]
    assert {choice.kernel for choice in ask(kernels=("fa4+fa3",), ranks=2).choices} == {"fa4+fa3"}


def test_a_pair_that_is_named_and_cannot_be_says_why():
    found = ask(kernels=("fa3+vsa",))
    assert [one.kernel for one in found.refused] == ["fa3+vsa"]
    assert found.refused[0].reasons[0].startswith("backward half: vsa takes")
    with pytest.raises(UnknownNameError, match="backward half 'nobody'"):
        ask(kernels=("fa3+nobody",))
    with pytest.raises(RequestError, match="without training name fa3"):
        ask(kernels=("fa3+fa4",), training=False)


def test_a_device_without_evidence_lists_what_is_valid_in_the_plugins_order():
    for device in ("b200", "cuda:10.0"):
        found = ask(device=device)
        assert found.choices == ()
        assert found.best is None
        names = [one.kernel for one in found.unmeasured]
        assert len(names) > 2
        assert names == [name for name in module.registry().kernels if name in names]
        (note,) = [text for text in found.notes if "no evidence" in text]
        assert "NVIDIA H200" in note


def test_a_gpu_without_evidence_is_ranked_by_another_one_of_its_compute_capability():
    ranked, measured = (ask(device=device) for device in ("h100", "h200"))
    assert [(c.kernel, c.seconds) for c in ranked.choices] == [(c.kernel, c.seconds) for c in measured.choices]
    assert "NVIDIA H100" in ranked.device
    told = (
        "no evidence on NVIDIA H100 80GB HBM3. The times are from evidence measured on NVIDIA H200, which has the same"
    )
    assert any(told in note for note in ranked.notes)
    assert not any("times are from" in note for note in measured.notes)


def test_memory_decides_what_fits():
    found = ask(memory="1500MB")
    least, most = (pick(choice.bytes_per_rank for choice in found.choices) for pick in (min, max))
    between = RESERVED + (least + most) // 2
    some = ask(memory=between)
    assert {choice.fits for choice in some.choices} == {True, False}
    for choice in some.choices:
        assert choice.fits == (choice.bytes_per_rank <= between - RESERVED)
    assert some.best.fits
    assert all(choice.fits for choice in ask().choices)
    everything = ask(device="cuda:9.0")
    assert everything.problem["memory"] is None


def test_tensors_that_are_too_large_say_how_many_tokens_and_devices_fit():
    found = ask(masks.build("causal", 2**20), memory="4GB")
    assert found.choices == ()
    (refused,) = found.refused
    assert (refused.kernel, refused.strategy) == (None, None)
    assert "1048576 tokens on 1 device" in refused.reasons[0]
    words = refused.advice.split()
    tokens, devices = int(words[3]), int(words[-2])
    fitting, above = (ask(masks.build("causal", length), memory="4GB") for length in (tokens, tokens + 1))
    assert fitting.choices
    assert not above.choices
    assert devices == -(-(2**20) // tokens)


def test_what_is_measured_on_this_machine_is_evidence(path):
    for length in (2048, 4096, 8192, 16384):
        append(row("naive", "causal", length, seconds=length / 1e5))
    found = ask(device="Some GPU", heads=(8, 2), training=False)
    assert [choice.kernel for choice in found.choices] == ["naive"]
    assert found.best.seconds.total == pytest.approx(0.082, rel=0.05)
    assert found.best.proof.nearest == "a run naive causal 8192 forward"
    assert "a run" in {one.run.run for one in sources().rows}


def test_the_scale_the_soft_cap_and_the_dims_of_a_question_are_those_of_its_answer():
    found = ask(softmax_scale=0.25)
    assert all(", softmax_scale=0.25)" in choice.call for choice in found.choices)
    asked = {"head_dim": 192, "head_dim_v": 128, "softcap": 30.0}
    problem = ask(**asked).problem
    assert asked.items() <= problem.items()
    assert "heads of 192:128, bfloat16, soft cap 30" in problem["text"]


def test_a_soft_cap_leaves_the_kernels_that_have_one():
    found = ask(softcap=50.0)
    assert {choice.kernel for choice in found.choices} == {"fa4", "flex"}
    assert all("soft cap" in " ".join(each.reasons) for each in found.refused if each.kernel in ("fa3", "cudnn"))
    plain = {choice.kernel: choice.seconds.total for choice in ask().choices}
    assert all(choice.seconds.total > 1.2 * plain[choice.kernel] for choice in found.choices)


def test_sinks_leave_the_kernels_that_compose():
    plain, found = ask(SPARSE, training=False), ask(SPARSE, training=False, sinks=True)
    assert "flashinfer_fa2" in {choice.kernel for choice in plain.choices}  # its log-sum-exp is rough
    refused = {one.kernel: one.reasons for one in found.refused}
    assert any("log-sum-exp is too rough" in reason and "sinks" in reason for reason in refused["flashinfer_fa2"])
    assert all("sinks=sinks" in choice.call for choice in found.choices)
    assert found.problem["sinks"]
    assert any("without sinks" in note for note in found.notes)


def test_the_answer_is_json():
    for found in (ask(), ask(device="b200"), ask(masks.build("causal", 2**26)), ask(SPARSE, training=False)):
        read = json.loads(json.dumps(found.as_json(), allow_nan=False))
        assert [choice["seconds"]["total"] for choice in read["choices"]] == [c.seconds.total for c in found.choices]
        assert [refused["kernel"] for refused in read["refused"]] == [refused.kernel for refused in found.refused]


def test_the_text_is_what_the_command_prints_and_the_repr_is_short():
    found = ask()
    text = str(found)
    assert text.startswith(found.problem["text"] + "\n\n")
    assert all(f"\n{choice.kernel} " in text for choice in found.choices[:8])
    assert text.endswith(f"    {found.best.call}")
    assert len(repr(found)) < 120


def test_no_torch_is_imported():
    code = (
        "import sys; from longca import masks; from longca_advice.recommend import recommend;"
        "found = recommend(masks.build('causal', 8192), heads=(32, 8), device='h200');"
        "print(len(found.choices) > 2, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False"]
