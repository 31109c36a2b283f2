import re
from dataclasses import replace

import pytest

from longca import masks
from longca.errors import UnsupportedError
from longca.manifests import Device, Layout, Offer, Problem, Step, resolve_manifest
from longca.manifests.resolve import step_problems

from ..fake_manifests import fake_manifest

CPU, SM80, SM90 = Device("cpu"), Device("cuda", (8, 0)), Device("cuda", (9, 0))
USUAL = {"dtypes": ("bfloat16", "float16"), "verified_on": ">=8.0", "backward": "external", "metadata": "O(1)"}


def manifest(*offers, **fields):
    return fake_manifest(*(Offer(**{"form": "causal", **USUAL, **offer}) for offer in offers), **fields)


def problem(mask="causal", **fields):
    mask = masks.build(mask, 64) if isinstance(mask, str) else mask
    return Problem(**{"mask": mask, "heads_q": 8, "heads_kv": 2, "device": SM90, **fields})


def reasons(offer, asked=None, layout=None, **fields):
    verdict = resolve_manifest(manifest(offer, **fields), asked or problem(), layout)
    assert bool(verdict) is not bool(verdict.reasons)
    return {reason.code: str(reason) for reason in verdict.reasons}


def test_the_first_offer_that_covers_the_problem_is_used():
    kernel = manifest({"form": "full"}, {"verified_on": "==9.0"}, {"verified_on": ">=8.0"})
    assert resolve_manifest(kernel, problem()).offer is kernel.offers[1]
    assert resolve_manifest(kernel, problem(device=SM80)).offer is kernel.offers[2]
    assert resolve_manifest(kernel, problem("full", device=SM80)).offer is kernel.offers[0]


@pytest.mark.parametrize(
    ("offer", "fields", "code", "message"),
    [
        ({"gqa": False}, {}, "gqa", "fake takes as many KV heads as query heads; 8:2 heads were asked."),
        ({}, {"dtype": "float32"}, "dtype", "fake takes bfloat16, float16; float32 was asked."),
        (
            {},
            {"device": CPU},
            "device",
            r"fake runs on CUDA devices of compute capability >=8.0; this device is a CPU.",
        ),
        (
            {"verified_on": "==9.0"},
            {"device": SM80},
            "device",
            "fake needs compute capability ==9.0; this device has 8.0.",
        ),
        ({"verified_on": None, "cpu": True}, {}, "device", "fake runs on CPUs; this device is cuda"),
        ({"max_head_dim": 64}, {}, "head_dim", "fake takes head dimensions up to 64; 128 was asked."),
        ({"head_dims": (64, 96)}, {}, "head_dim", "fake takes head dimensions 64, 96; 128 was asked."),
        ({"head_dim_multiple": 8}, {"head_dim": 100}, "head_dim", "multiples of 8; 100 was asked."),
        ({}, {"deterministic": True}, "deterministic", "fake is not deterministic in its causal form"),
        ({"backward": "none"}, {"direction": "backward"}, "direction", "fake has a forward alone in its causal form"),
        ({"max_seqlen": 32}, {}, "lengths", "fake takes at most 32 tokens here; 64 were asked."),
        (
            {"requires": ("nope>=2",)},
            {},
            "package",
            r"fake needs nope>=2; nope is not installed. .*pip install 'nope>=2'",
        ),
    ],
)
def test_each_reason_says_what_was_asked_and_what_is_offered(offer, fields, code, message):
    found = reasons(offer, problem(**fields))
    assert list(found) == [code]
    assert re.search(message, found[code])


def test_a_mask_that_no_offer_takes_gets_one_reason():
    kernel = manifest({}, {"form": "row_intervals", "most": 1})
    asked = problem(masks.build("global_sliding_window", 64, window=4, global_tokens=4))
    (reason,) = resolve_manifest(kernel, asked).reasons
    assert reason.code == "form"
    assert "fake takes causal, row_intervals (at most 1)" in str(reason)


def test_the_reasons_are_those_of_the_nearest_offer():
    kernel = manifest({"dtypes": ("float16",), "gqa": False}, {"dtypes": ("float16",)})
    assert [reason.code for reason in resolve_manifest(kernel, problem()).reasons] == ["dtype"]
    on_both = manifest({"verified_on": None, "cpu": True}, {"verified_on": "==9.0"})
    (reason,) = resolve_manifest(on_both, problem(device=SM80)).reasons
    assert "compute capability ==9.0" in str(reason)


@pytest.mark.parametrize(
    ("offers", "fields", "message"),
    [
        (
            [{"max_seqlen": 16}, {"max_seqlen": 32, "deterministic": True}],
            {},
            "fake takes at most 32 tokens here; 64 were asked.",
        ),
        (
            [{"head_dims": (16, 96)}, {"max_head_dim": 32}, {"max_head_dim": 64}],
            {},
            "fake takes head dimensions 96 or up to 64; 128 was asked.",
        ),
        (
            [{"dtypes": ("float16",)}, {"dtypes": ("float64", "float16")}],
            {},
            "fake takes float16, float64; bfloat16 was asked.",
        ),
        (
            [{"verified_on": "==9.0"}, {"verified_on": None, "expected_on": "==10.0"}],
            {"device": SM80},
            "fake needs compute capability ==9.0 (verified) or ==10.0 (expected); this device has 8.0.",
        ),
        # An offer that is refused for another reason too says nothing about this one.
        (
            [{"head_dims": (64,)}, {"head_dims": (96,), "dtypes": ("float32",)}],
            {},
            "fake takes head dimensions 64; 128 was asked.",
        ),
        # It takes float32, but with other head dimensions. In bfloat16 it takes this one.
        (
            [{"head_dims": (64, 128)}, {"head_dims": (16,), "dtypes": ("float32",)}],
            {"dtype": "float32"},
            "fake takes head dimensions 16 here; 128 was asked.",
        ),
    ],
)
def test_a_reason_quotes_what_all_near_offers_accept(offers, fields, message):
    (reason,) = resolve_manifest(manifest(*offers), problem(**fields)).reasons
    assert str(reason) == message


def test_unequal_lengths_and_heads_of_a_mask():
    rectangle = masks.build("causal", 32, seqlen_k=64)
    assert list(reasons({}, problem(rectangle))) == ["lengths"]
    assert not reasons({"unequal_lengths": True}, problem(rectangle))
    sparse = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=8, seed=0)
    assert list(reasons({"form": "block_sparse"}, problem(sparse))) == ["mask_heads"]
    assert list(reasons({"form": "block_sparse", "mask_heads": "kv"}, problem(sparse))) == ["mask_heads"]
    assert not reasons({"form": "block_sparse", "mask_heads": "query"}, problem(sparse))
    assert list(reasons({"form": "block_sparse", "mask_heads": "query", "block_sizes": (128,)}, problem(sparse))) == [
        "form"
    ]


def test_patterns_are_answered_for_all_of_their_masks():
    kernel = manifest({"form": "row_intervals", "most": 1})
    assert resolve_manifest(kernel, problem(masks.get_pattern("causal_document")))
    assert not resolve_manifest(kernel, problem(masks.get_pattern("global_sliding_window")))
    assert not resolve_manifest(kernel, problem(masks.get_pattern("uniform_block_sparse")))


def test_check_raises_with_the_reasons_and_the_alternatives():
    verdict = resolve_manifest(manifest({"gqa": False}), problem())
    with pytest.raises(UnsupportedError, match=r"as many KV heads .* Valid here: naive, sdpa\."):
        verdict.check(("naive", "sdpa"))
    good = resolve_manifest(manifest({}), problem())
    assert good.check() is good


def zigzag_ring(ranks, seqlen, heads_q=8, heads_kv=2):
    """Each rank holds a chunk from either end and meets the others' keys step by step."""
    chunk = seqlen // (2 * ranks)

    def held(rank):
        other = 2 * ranks - 1 - rank
        return ((rank * chunk, (rank + 1) * chunk), (other * chunk, (other + 1) * chunk))

    return Layout(
        tuple(
            tuple(Step(held(rank), held((rank - step) % ranks), (0, heads_q), (0, heads_kv)) for step in range(ranks))
            for rank in range(ranks)
        ),
        tuple(map(held, range(ranks))),
    )


def test_a_causal_zigzag_ring_is_a_causal_step_and_rectangles():
    layout = zigzag_ring(2, 64)
    ring = {"unequal_lengths": True}
    verdict = resolve_manifest(
        manifest(ring, {**ring, "form": "varlen"}, {**ring, "form": "row_intervals"}), problem(), layout
    )
    assert verdict.valid
    assert layout.world_size == 2
    assert len(verdict.offers) > 1
    assert verdict.offer is None


def test_a_layout_is_as_valid_as_its_worst_step():
    found = reasons({}, layout=zigzag_ring(2, 64))
    assert "layout" in found
    assert "rank 0 of 2" in found["layout"]
    assert "form" in found


def test_a_backward_that_is_merged_must_compose():
    layout = zigzag_ring(2, 64)
    rows = {"form": "row_intervals", "unequal_lengths": True}
    asked = problem(direction="backward")
    assert not reasons(rows, asked, layout)
    assert not reasons({**rows, "backward": "lse_grad"}, asked, layout)
    assert "composition" in reasons({**rows, "backward": "own"}, asked, layout)
    assert not reasons({**rows, "backward": "own"}, problem(), layout)


def test_the_first_offer_that_composes_takes_what_is_composed():
    """A kernel that asks for its offer gets the offer of the layout's verdict."""
    layout, asked = zigzag_ring(2, 64), problem(direction="backward")
    rows = {"form": "row_intervals", "unequal_lengths": True}
    kernel = manifest({**rows, "backward": "own"}, {**rows, "rough_lse": True}, {**rows, "backward": "lse_grad"})
    assert resolve_manifest(kernel, asked).offer is kernel.offers[0]
    assert resolve_manifest(kernel, asked, layout).offers == (kernel.offers[2],)
    for step in (step for rank in step_problems(asked, layout) for step in rank):
        assert resolve_manifest(kernel, step).offer is kernel.offers[2]
    forward = problem()
    assert resolve_manifest(kernel, forward, layout).offers == (kernel.offers[0],), (
        "a forward alone has an lse to merge"
    )


def test_only_ranks_of_several_steps_compose_them():
    halves = ((0, 32),), ((32, 64),)
    both = tuple(tuple(Step(mine, theirs, (0, 8), (0, 2)) for theirs in halves) for mine in halves)
    layout = Layout(both, halves)
    flags = [[step and step.composed for step in rank] for rank in step_problems(problem(), layout)]
    assert flags == [[False, None], [True, True]], "a causal mask shows the first rank its own keys alone"
    part = step_problems(replace(problem(), composed=True), layout)
    assert [step.composed for rank in part for step in rank if step] == [True] * 3, "parts of a part are parts"


def test_a_backward_alone_is_refused_unless_another_kernel_computes_the_forward():
    alone = {"forward": False}
    for direction in ("forward", "backward"):
        (reason,) = resolve_manifest(manifest(alone), problem(direction=direction)).reasons
        assert reason.code == "direction"
        assert str(reason) == (
            "fake has a backward alone in its causal form; a forward was asked. "
            "Pair it with a kernel that has one: FORWARD+fake"
        )
    assert not reasons(alone, problem(direction="backward", composed=True, backward_only=True))


def test_a_kernel_that_may_give_no_lse_is_refused_where_one_is_needed():
    kernel = manifest({"form": "row_intervals", "unequal_lengths": True, "optional_lse": True})
    assert resolve_manifest(kernel, problem()).optional_lse
    heads = (Step(((0, 64),), ((0, 64),), (4 * r, 4 * r + 4), (r, r + 1)) for r in range(2))
    by_heads = Layout(tuple((step,) for step in heads), (((0, 32),), ((32, 64),)))
    merged, moved = (
        " ".join(map(str, resolve_manifest(kernel, problem(), layout).reasons))
        for layout in (zigzag_ring(2, 64), by_heads)
    )
    assert "fake may give no log-sum-exp to merge by; one part of a larger softmax was asked." in merged
    assert moved == "fake may give no log-sum-exp, and ranks return one with their outputs; 2 ranks were asked."


def test_ulysses_slices_the_heads_of_a_mask():
    mask = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=2, seed=0)
    everything = ((0, 256),)
    steps = tuple((Step(everything, everything, (4 * r, 4 * r + 4), (r, r + 1)),) for r in range(2))
    layout = Layout(steps, (((0, 128),), ((128, 256),)))
    asked = problem(mask)
    assert list(reasons({"form": "block_sparse"}, asked)) == ["mask_heads"]
    assert not reasons({"form": "block_sparse"}, asked, layout), "each rank is left with one mask"
