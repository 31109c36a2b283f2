"""kernel="auto": what was measured here decides, else a stated order."""

import dataclasses

import pytest

from longca import masks
from longca.errors import UnsupportedError
from longca.kernels import history as history_module
from longca.kernels.choice import choose
from longca.kernels.history import Entry
from longca.manifests import Backward, Device, Problem, Reason, Verdict

from .toys import Toys, manifest

MASK = masks.build("causal_document", 1024, documents=[300, 724])
TOYS = Toys(
    manifest("naive"),
    manifest("quadratic", metadata="O(S²)"),
    manifest("forward_only", backward=Backward.NONE),
    manifest("lean"),
    manifest("leaner"),
    manifest("gpu_only", cpu=False, cuda=">=9.0"),
)


def problem(mask=MASK, **more):
    more = {"heads_q": 8, "heads_kv": 2, "head_dim": 64, "dtype": "bfloat16", "device": Device("cpu"), **more}
    return Problem(mask=mask, **more)


def measured(kernel, seconds, asked=None, **changes):
    """Appends a measurement of a problem, some of its facts changed."""
    entry = Entry.of(kernel, asked or problem(), seconds)
    history_module.append(dataclasses.replace(entry, **changes))


def chosen(asked=None):
    return choose(asked or problem(), TOYS).kernel


# Without measurements


def test_unmeasured_lean_kernels_come_first_in_their_order():
    assert chosen() == "forward_only"
    assert chosen(problem(direction="backward")) == "lean"
    assert "first valid kernel" in choose(problem(), TOYS).announcement


def test_unmeasured_naive_comes_last():
    assert choose(problem(), Toys(manifest("naive"), manifest("quadratic", metadata="O(S²)"))).kernel == "quadratic"
    assert choose(problem(), Toys(manifest("naive"), manifest("lean"))).kernel == "lean"
    quadratic = [manifest(name, metadata="O(S²)") for name in ("b", "a")]
    assert choose(problem(), Toys(*quadratic)).kernel == "b"


def test_the_cores_own(core):
    assert choose(problem(masks.build("causal", 1024)), core).kernel == "sdpa"
    assert choose(problem(), core).kernel == "sdpa"
    large = masks.build("causal_sliding_window", 2**17, window=9)  # 16 GiB as a dense matrix
    assert choose(problem(large), core).kernel == "naive"


def test_where_nothing_is_valid_everyone_says_why():
    toys = Toys(manifest("gpu_only", cpu=False, cuda=">=9.0"), manifest("wide", head_dims=(128,)))
    with pytest.raises(UnsupportedError, match=r"gpu_only runs on CUDA.*wide takes head dimensions 128"):
        choose(problem(), toys)


# With measurements


def test_the_fastest_on_the_same_problem_is_taken():
    measured("quadratic", 3.0)
    measured("naive", 1.0)
    measured("lean", 2.0)
    choice = choose(problem(), TOYS)
    assert choice.kernel == "naive"
    assert "naive for causal_document of 1024 tokens: the fastest measured here on" in choice.announcement
    assert "causal_document of 1024 tokens, heads 8:2, head_dim 64" in choice.announcement


def test_the_nearest_point_counts_not_the_fastest_anywhere():
    measured("lean", 1.0, seqlen=1500)
    measured("naive", 2.0, seqlen=1500)
    measured("quadratic", 1e-6, seqlen=8192)
    measured("quadratic", 1e-6, seqlen=256)
    assert chosen() == "lean"


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ({"seqlen": 2048}, {"seqlen": 256}),
        ({"head_dim": 128}, {"head_dim": 8}),
        ({"heads_q": 16}, {"heads_q": 64}),
        ({"heads_kv": 1}, {"heads_kv": 8}),
        ({"density": 0.25}, {"density": 0.01}),
        ({"seqlen": 2048}, {"seqlen": 2048, "head_dim": 128}),
        ({}, {"seqlen": 1025}),
    ],
)
@pytest.mark.parametrize("far_first", [True, False])
def test_what_near_means(near, far, far_first):
    points = [("lean", near), ("leaner", far)]
    for name, changes in reversed(points) if far_first else points:
        measured(name, 1.0, **changes)
    assert chosen() == "lean"


@pytest.mark.parametrize(
    "changes",
    [{"pattern": "causal"}, {"pattern": None}, {"device": "NVIDIA H200"}, {"dtype": "float16"}],
    ids=str,
)
def test_pattern_device_and_dtype_must_match(changes):
    measured("quadratic", 1e-9, **changes)
    assert chosen() == "forward_only"
    measured("naive", 1.0, seqlen=10**6)
    assert chosen() == "naive"


def test_a_gpu_is_its_name():
    gpu = problem(device=Device("cuda", (9, 0), None, "NVIDIA H200"))
    toys = Toys(*(manifest(name, cuda=">=9.0") for name in ("a", "b")))
    measured("b", 1.0, gpu, device="NVIDIA H100")
    assert choose(gpu, toys).kernel == "a"
    measured("b", 1.0, gpu)
    assert choose(gpu, toys).kernel == "b"


def test_masks_of_no_pattern_learn_from_one_another():
    cut = problem(MASK.cut([(0, 500)], [(0, 1024)]))
    measured("naive", 1.0, problem(MASK.cut([(1, 500)], [(0, 1024)])))
    assert chosen(cut) == "naive"


def test_a_kernel_that_is_not_valid_or_not_there_does_not_count():
    measured("gpu_only", 1e-9)
    measured("gone", 1e-9)
    assert chosen() == "forward_only"
    measured("quadratic", 1.0, seqlen=4096)
    assert chosen() == "quadratic"


def test_training_goes_by_both_directions_together():
    asked = problem(direction="backward")
    for name, forward, backward in (("lean", 1.0, 5.0), ("leaner", 3.0, 2.0), ("naive", 0.5, 6.0)):
        measured(name, forward, direction="forward")
        measured(name, backward, direction="backward")
    measured("forward_only", 0.1, direction="forward")
    assert chosen(asked) == "leaner"
    assert chosen() == "forward_only"


def test_training_needs_both_directions_measured():
    asked = problem(direction="backward")
    measured("quadratic", 0.1, direction="forward")
    measured("naive", 0.1, direction="backward")
    assert chosen(asked) == "lean"
    measured("leaner", 9.0, direction="forward", seqlen=512)
    measured("leaner", 9.0, direction="backward", seqlen=512)
    assert chosen(asked) == "leaner"


def test_inference_goes_by_forwards_alone():
    measured("naive", 1e-9, direction="backward")
    assert chosen() == "forward_only"
    for name, forward, backward in (("lean", 2.0, 1.0), ("leaner", 1.0, 9.0)):
        measured(name, forward, direction="forward")
        measured(name, backward, direction="backward")
    assert chosen() == "leaner"


def test_a_later_measurement_of_the_same_replaces_the_earlier():
    measured("naive", 1.0)
    measured("lean", 2.0)
    measured("naive", 3.0)
    assert chosen() == "lean"


def test_torn_lines_do_not_count(history):
    measured("quadratic", 1.0)
    measured("naive", 0.1)
    text = history.read_text()
    history.write_text("{\n" + text[:-20])  # the last measurement lost its end
    assert chosen() == "quadratic"


def test_the_history_is_read_anew():
    assert chosen() == "forward_only"
    measured("naive", 1.0)
    assert chosen() == "naive"


def test_an_empty_mask_is_no_stumbling_block():
    empty = problem(MASK.cut([(0, 10)], [(500, 510)]))
    measured("naive", 1.0, empty)
    assert chosen(empty) == "naive"


def test_verdicts_of_a_layout_decide_where_they_are_given():
    refused = Verdict("lean", None, (Reason("layout", "a ring was tried", "lean takes no such steps"),))
    verdicts = {"lean": refused, "leaner": TOYS.resolve("leaner", problem())}
    assert choose(problem(), TOYS, verdicts).kernel == "leaner"
    with pytest.raises(UnsupportedError, match="lean takes no such steps"):
        choose(problem(), TOYS, {"lean": refused})


def test_one_step_with_quadratic_metadata_counts_for_all():
    lean, quadratic = (TOYS.kernels[name].offers[0] for name in ("lean", "quadratic"))
    verdicts = {"mixed": Verdict("mixed", None, (), (lean, quadratic)), "lean": Verdict("lean", lean)}
    assert choose(problem(), TOYS, verdicts).kernel == "lean"
