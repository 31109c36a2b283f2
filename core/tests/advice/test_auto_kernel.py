"""kernel="auto": the cost model decides where something was measured, else a stated order."""

import logging

import pytest

from longca import masks, plugins
from longca.adviser import log
from longca.errors import UnsupportedError
from longca.manifests import Backward, Device, Problem, Reason, Verdict
from longca.masks import Form
from longca_advice.auto_kernel import choose
from longca_advice.devices import DEVICES, evidence_name
from longca_advice.evidence import Run
from longca_advice.history import CodeVerdict, append

from ..core_alone import *  # noqa: F403  # fixtures
from ..core_alone import _core_alone, _one_thread  # noqa: F401
from ..kernels.toys import Toys, manifest, measured

MASK = masks.build("causal_document", 1024, documents=[300, 724])
TOYS = Toys(
    manifest("naive"),
    manifest("quadratic", metadata="O(S²)"),
    manifest("forward_only", backward=Backward.NONE),
    manifest("lean"),
    manifest("leaner"),
    manifest("gpu_only", cpu=False, verified_on=">=9.0"),
)


def problem(mask=MASK, **more):
    more = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "dtype": "bfloat16", "device": Device("cpu"), **more}
    return Problem(mask=mask, **more)


def here(kernel, seconds, asked=None, **changes):
    """A measurement of a problem, some of its facts changed."""
    measured(kernel, seconds, asked or problem(), **changes)


def both(kernel, forward, backward):
    """Measurements of both directions."""
    here(kernel, forward)
    here(kernel, backward, problem(direction="backward"))


def chosen(asked=None, toys=TOYS):
    return choose(asked or problem(), toys).kernel


# Without measurements


def test_unmeasured_lean_kernels_come_first_in_their_order_and_naive_last():
    assert chosen() == "forward_only"
    assert chosen(problem(direction="backward")) == "lean"
    assert chosen(toys=Toys(manifest("naive"), manifest("quadratic", metadata="O(S²)"))) == "quadratic"


# With measurements


def test_the_fastest_on_the_same_problem_is_taken():
    here("quadratic", 3.0)
    here("naive", 1.0)
    here("lean", 2.0)
    choice = choose(problem(), TOYS)
    assert choice.kernel == "naive"
    assert choice.level == logging.INFO
    assert "naive for causal_document of 1024 tokens: predicted to take 1 s (" in choice.announcement
    assert "learnt from 1 measured call, the nearest in this machine" in choice.reason
    assert "Next is lean with 2 s (" in choice.reason


def test_naive_comes_after_what_may_be_as_fast_where_the_prediction_extrapolates():
    toys = Toys(*(manifest(name, form=Form.ROW_INTERVALS) for name in ("naive", "lean", "leaner")))
    for name, seconds in (("naive", 1.0), ("lean", 1.01), ("leaner", 9.0)):
        here(name, seconds, problem(masks.build("causal", 2048)), form=Form.ROW_INTERVALS)
    assert chosen(problem(masks.build("causal", 2048)), toys) == "naive"
    choice = choose(problem(masks.build("causal", 32768)), toys)
    assert choice.kernel == "lean"
    assert "Next is naive" in choice.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head_dim": 128}, "head dimension 64; measured is 128"),
        ({"dtype": "float16"}, "bfloat16; measured is float16"),
    ],
    ids=str,
)
def test_what_lies_outside_the_evidence_is_a_warning(change, says):
    here("leaner", 1.0, **change)
    choice = choose(problem(), TOYS)
    assert (choice.kernel, choice.level) == ("leaner", logging.WARNING)
    assert f"The prediction extrapolates: {says}" in choice.reason


def gpu(capability, name, **more):
    return problem(device=Device("cuda", capability, None, name), **more)


def test_a_gpu_without_evidence_takes_that_of_the_nearest_compute_capability():
    asked = gpu((8, 6), "NVIDIA A40")
    toys = Toys(*(manifest(name, verified_on=">=8.0") for name in ("a", "b", "c")))
    assert chosen(asked, toys) == "a"
    here("b", 1.0, gpu((9, 0), "NVIDIA H200"))
    choice = choose(asked, toys)
    assert choice.kernel == "b"
    assert "from evidence measured on NVIDIA H200, which has another compute capability; `longca run`" in choice.reason
    here("c", 9.0, gpu((8, 0), "NVIDIA A100"))
    assert chosen(asked, toys) == "c"
    here("b", 9.0, gpu((8, 6), "NVIDIA RTX A6000"))
    choice = choose(asked, toys)
    assert choice.kernel == "b"
    assert "measured on NVIDIA RTX A6000, which has the same compute capability" in choice.reason
    here("a", 99.0, asked)
    assert chosen(asked, toys) == "a"


@pytest.mark.parametrize(("capability", "kernel"), [((9, 0), "a+b"), ((8, 0), "b")], ids=str)
def test_pairs_count_on_a_gpu_without_evidence_if_the_compute_capability_is_the_same(capability, kernel):
    toys = Toys(*(manifest(name, verified_on=">=8.0") for name in ("a", "b")))
    for name, forward, backward in (("a", 1.0, 5.0), ("b", 2.0, 2.0)):
        here(name, forward, gpu((9, 0), "NVIDIA H200"))
        here(name, backward, gpu((9, 0), "NVIDIA H200", direction="backward"))
    asked = gpu(capability, "a GPU without evidence", direction="backward")
    assert chosen(asked, toys) == kernel
    found("a", "wrong", device="a GPU without evidence")
    assert chosen(asked, toys) == "b"


@pytest.fixture
def installed(monkeypatch):
    """The registry of all plugins, as if every package were installed."""
    monkeypatch.setattr("longca.manifests.resolve.missing", lambda requirement: None)
    return plugins.Registry()


MASKS = {
    "causal": masks.build("causal", 16384),
    "full_document": masks.build("full_document", 16384, documents=[4096] * 4),
    "full_sliding_window": masks.build("full_sliding_window", 16384, window=1024),
    "blocks of 64": masks.build("uniform_block_sparse", 16384, block=64, kept=0.2, heads=1, seed=1),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ["h100", "a100", "b200"])
def test_a_real_gpu_without_evidence_takes_a_kernel_for_its_mask(installed, name, mask):
    sizes = {"heads_q": 32, "heads_kv": 32, "head_dim": 128, "direction": "backward", "allow_unverified": True}
    choice = choose(problem(mask, device=DEVICES[name], **sizes), installed)
    if name == "h100":
        assert choice.kernel == choose(problem(mask, device=DEVICES["h200"], **sizes), installed).kernel
        assert "measured on NVIDIA H200, which has the same compute capability" in choice.reason
        return
    assert not {"naive", "online", "sdpa"} & set(choice.kernel.split("+"))
    assert (choice.kernel, mask.pattern) != ("cudnn", "full_sliding_window"), "its backward is very slow"
    assert "measured on NVIDIA H200, which has another compute capability" in choice.reason


# Training


def test_a_pair_is_taken_where_it_is_faster_than_its_kernels():
    asked = problem(direction="backward")
    both("lean", 1.0, 5.0)
    both("leaner", 3.0, 2.0)
    choice = choose(asked, TOYS)
    assert choice.kernel == "lean+leaner"
    assert "lean+leaner for causal_document of 1024 tokens in training: predicted to take 3 s" in choice.announcement
    assert "Next is leaner with 5 s" in choice.reason
    assert chosen() == "lean"


# Memory


def large(problem, form):
    """A kernel's workspace: a TiB."""
    return 2**40


def test_what_does_not_fit_is_passed_over_unless_nothing_fits():
    fast = manifest("fast").model_copy(update={"workspace": f"{__name__}:large"})
    asked = problem(device=Device("cpu", memory=2**37))
    here("fast", 1.0, asked)
    here("lean", 2.0, asked)
    choice = choose(asked, Toys(fast, manifest("lean")))
    assert (choice.kernel, choice.level) == ("lean", logging.INFO)
    assert "fast is passed over: it needs 1024.0 GiB of the device's 127.0 GiB" in choice.reason
    tiny = problem(device=Device("cpu", memory=2**20))
    assert chosen(tiny, Toys(fast, manifest("lean"))) == "fast", "no memory is known to be there for attention"
    alone = choose(asked, Toys(fast))
    assert (alone.kernel, alone.level) == ("fast", logging.WARNING)
    assert "No choice fits into the memory. This one needs 1024.0 GiB" in alone.reason


# Under a layout


def test_verdicts_of_a_layout_decide_where_they_are_given():
    refused = Verdict("lean", None, (Reason("layout", "a ring was tried", "lean takes no such steps"),))
    verdicts = {"lean": refused, "leaner": TOYS.resolve("leaner", problem())}
    here("lean", 1.0)
    assert choose(problem(), TOYS, verdicts).kernel == "leaner"
    with pytest.raises(UnsupportedError, match="lean takes no such steps"):
        choose(problem(), TOYS, {"lean": refused})


# What is logged


def test_a_choice_is_logged_once_for_masks_that_look_alike(caplog):
    caplog.set_level(logging.INFO, "longca")
    here("lean", 1.0)
    for documents in ([300, 724], [301, 723]):
        log(choose(problem(masks.build("causal_document", 1024, documents=documents)), TOYS))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    log(choose(problem(masks.build("causal_document", 16384, documents=[16384])), TOYS))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def found(kernel, status, version="toys 1", device=None):
    """Adds a case in which a kernel was found wrong or suspect."""
    run = Run(run="this machine", device=device or evidence_name(problem().device))
    append(CodeVerdict(status=status, case="c", kernel=kernel, version=version, finished="", run=run))


@pytest.mark.parametrize("status", ["wrong", "suspect"])
def test_a_kernel_that_was_found_wrong_is_not_taken_however_fast_it_is_said_to_be(status):
    here("leaner", 2.0)
    here("lean", 1.0, version="toys 1")
    assert chosen() == "lean"
    found("lean", status, device="Another CPU")
    found("lean", status, version="toys 0.9")
    assert chosen() == "lean"
    found("lean", status)
    here("lean", 1e-3, version="toys 1", case="another")
    choice = choose(problem(), TOYS)
    assert choice.kernel == "leaner"
    assert "lean is passed over: LongCA found this version of it wrong or suspect here" in choice.wrong
