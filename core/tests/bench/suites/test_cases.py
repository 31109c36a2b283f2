from dataclasses import replace

import pytest

from longca.errors import RequestError, UnknownNameError
from longca.manifests import Backward, Device
from longca_bench.suites.cases import Selection, absent, expand
from longca_bench.suites.one_problem import problem_suite
from longca_bench.suites.suite import Sweep, load_suite
from longca_bench.suites.tasks import takes


def test_selection_narrows():
    selection = Selection(("sdpa",), ("causal", "full"), (64,), ("forward",))
    cases = expand(load_suite("quick"), ["naive", "sdpa"], selection)
    assert [(c.kernel, c.pattern, c.seqlen, c.direction) for c in cases] == [
        ("sdpa", "full", 64, "forward"),
        ("sdpa", "causal", 64, "forward"),
    ]


@pytest.mark.parametrize("selection", [Selection(kernels=("sdp",)), Selection(patterns=("caussal",))])
def test_unknown_names(selection):
    with pytest.raises(UnknownNameError, match="Did you mean"):
        expand(load_suite("quick"), ["naive", "sdpa"], selection)


def test_a_length_is_kept_where_the_suite_has_it_and_else_taken_by_every_sweep():
    dense = load_suite("dense")
    listed = expand(dense, ["sdpa", "naive"], Selection(seqlens=(131072,)))
    assert {(case.kernel, case.seed) for case in listed} == {("sdpa", 0)}
    assert len(listed) == 12 * 2 * 2, "masks, heads and directions"
    other = expand(dense, ["sdpa", "naive"], Selection(seqlens=(4097,), patterns=("causal_document",)))
    assert {(case.kernel, case.seed) for case in other} == {(k, s) for k in ("sdpa", "naive") for s in (0, 1, 2)}


def test_heads_and_seeds_narrow():
    narrow = Selection(heads=("64:8",), seeds=(1,), seqlens=(8192,))
    cases = expand(load_suite("dense"), ["sdpa", "naive"], narrow)
    assert {(case.heads_q, case.heads_kv, case.seed) for case in cases} == {(64, 8, 1)}
    assert len({case.pattern for case in cases}) == 8
    with pytest.raises(UnknownNameError, match="Did you mean 64:8"):
        expand(load_suite("dense"), ["sdpa", "naive"], Selection(heads=("64:9",)))


def test_kernels_that_a_suite_can_do_without():
    dense = load_suite("dense")
    left_out = absent(dense, ["sdpa", "naive", "fa3"])
    assert set(left_out) == {"fa2", "fa4", "flex", "flex_flash", "cudnn", "cudnn_flex", "flashmask"}
    assert not absent(dense, ["sdpa"], Selection(kernels=("sdpa",)))
    strict = dense.model_copy(update={"distributions": {}})
    with pytest.raises(UnknownNameError, match="fa2"):
        expand(strict, ["sdpa", "naive"])


def with_kernels(*kernels, **fields):
    """The suite `quick` with other kernels."""
    quick = load_suite("quick")
    sweep = quick.sweep[0].model_copy(update={"kernels": kernels})
    return quick.model_copy(update={"sweep": (sweep,), **fields})


def kernels_of(suite, known, *selected):
    return list(dict.fromkeys(case.kernel for case in expand(suite, known, Selection(kernels=selected))))


def test_pairs_are_listed_and_selected_as_kernels_are():
    known = ("naive", "sdpa", "other")
    assert kernels_of(with_kernels("naive+sdpa"), known) == ["naive+sdpa"]
    assert kernels_of(with_kernels("*", "naive+sdpa"), known) == [*known, "naive+sdpa"]
    assert kernels_of(load_suite("quick"), known, "sdpa+naive", "sdpa") == ["sdpa", "sdpa+naive"]
    assert kernels_of(with_kernels("naive", "sdpa"), known, "sdpa+naive") == ["sdpa+naive"]
    with pytest.raises(UnknownNameError, match="unknown kernel of suite quick 'other'"):
        kernels_of(with_kernels("naive", "sdpa"), known, "sdpa+other")


def test_a_pair_is_left_out_where_a_half_is_not_here():
    suite = with_kernels("naive+far", "naive", distributions={"far": "longca-far"})
    assert kernels_of(suite, ("naive",)) == ["naive"]
    assert list(absent(suite, ("naive",))) == ["far"]
    assert not absent(suite, ("naive",), Selection(kernels=("naive",)))
    with pytest.raises(RequestError, match="kernel 'far' is not here: longca-far is not installed"):
        kernels_of(suite, ("naive",), "naive+far")


def paired(suite, registry, selection=Selection()):
    """The kernel and the direction of each case on a CPU, where valid pairs are added."""
    cases = expand(suite, registry.kernels, selection, takes=takes(registry, Device("cpu")))
    return [(case.kernel, str(case.direction)) for case in cases]


@pytest.mark.parametrize(
    ("naive", "pairs"),
    [
        ({}, ["naive+sdpa", "sdpa+naive"]),
        ({"backward": Backward.NONE}, ["naive+sdpa"]),
        ({"backward": Backward.OWN}, ["naive+sdpa"]),
        ({"rough_lse": True}, ["sdpa+naive"]),
    ],
)
def test_pairs_are_added_in_the_backward_where_they_are_valid(core, naive, pairs):
    manifest = core.manifest("naive")
    offers = tuple(offer.model_copy(update=naive) for offer in manifest.offers)
    core.kernels["naive"] = manifest.model_copy(update={"offers": offers})
    quick, narrow = load_suite("quick"), Selection(patterns=("causal",), seqlens=(64,))
    singles = [(name, direction) for name in ("naive", "sdpa") for direction in ("forward", "backward")]
    wanted = [*singles, *((name, "backward") for name in pairs)]
    assert paired(quick, core, replace(narrow, pairs=True)) == wanted
    sweep = quick.sweep[0].model_copy(update={"pairs": True})
    assert paired(quick.model_copy(update={"sweep": (sweep,)}), core, narrow) == wanted
    assert paired(quick, core, narrow) == singles


def test_pairs_are_of_the_selected_kernels_and_a_listed_pair_keeps_its_forward(core):
    selection = Selection(("naive", "sdpa", "naive+sdpa"), ("causal",), (64,), pairs=True)
    assert paired(load_suite("quick"), core, selection) == [
        *((name, d) for name in ("naive", "sdpa", "naive+sdpa") for d in ("forward", "backward")),
        ("sdpa+naive", "backward"),
    ]
    sweep = load_suite("quick").sweep[0].model_copy(update={"factors": {"causal": {"window": 3}}})
    without_mask = load_suite("quick").model_copy(update={"sweep": (sweep,)})
    assert ("sdpa+naive", "backward") not in paired(without_mask, core, selection)


def test_pairs_without_a_backward_are_refused():
    with pytest.raises(RequestError, match="leave out --pairs, or --direction forward"):
        expand(load_suite("quick"), ["naive"], Selection(directions=("forward",), pairs=True))
    fields = {**load_suite("quick").sweep[0].model_dump(), "pairs": True, "directions": ("forward",)}
    with pytest.raises(ValueError, match="add it to directions, or leave out pairs"):
        Sweep.model_validate({name: value for name, value in fields.items() if value != ()})


def test_kernels_share_masks_and_digests_tell_cases_apart():
    cases = expand(load_suite("quick"), ["naive", "sdpa"], Selection(seqlens=(256,)))
    digests = {case.digest("cpu") for case in cases}
    assert len(digests) == len(cases)
    assert cases[0].digest("cpu") != cases[0].digest("other")
    pairs = {}
    for case in cases:
        pairs.setdefault((case.pattern, case.seed), set()).add(case.mask.digest)
    assert all(len(masks) == 1 for masks in pairs.values())


def test_a_soft_cap_is_of_the_case_and_its_digest():
    plain, capped = (problem_suite("causal", seqlens=[256], softcap=cap) for cap in (None, 50.0))
    assert plain.digest == problem_suite("causal", seqlens=[256]).digest != capped.digest
    one, other = expand(plain, ["naive"])[0], expand(capped, ["naive"])[0]
    assert (other.softcap, other.problem(Device("cpu")).softcap) == (50.0, 50.0)
    assert one == replace(other, softcap=None)
    assert one.digest("cpu") != other.digest("cpu")
    with pytest.raises(RequestError, match=r"softcap is -1\.0; give a number above 0"):
        problem_suite("causal", seqlens=[256], softcap=-1.0)


def test_a_grid_gives_a_case_a_combination_and_masks_of_their_own():
    suite = load_suite("sparse")
    narrow = Selection(kernels=("bsa",), seqlens=(16384,), directions=("forward",), heads=("64:8",))
    cases = expand(suite, tuple(suite.distributions), narrow)
    uniform = [case for case in cases if case.pattern == "uniform_block_sparse"]
    assert [dict(case.factors) for case in uniform] == [
        {"block": block, "kept": kept} for block in (64, 128) for kept in (0.2, 0.5, 0.8)
    ]
    assert len({case.digest("cpu") for case in cases}) == len(cases) == 9
    densities = [round(case.mask.density, 2) for case in uniform[:3]]
    assert densities == [0.2, 0.5, 0.8]


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(seeds=(9,)), "no sweep of suite dense has seed 9; leave it out. Its seeds: 0, 1, 2"),
        (
            Selection(seeds=(2,), seqlens=(131072,)),
            "no sweep of suite dense has length 131072, seed 2 together; leave out one of them. Its seeds: 0, 1, 2",
        ),
        (Selection(patterns=("uniform_block_sparse",)), "unknown mask pattern of suite dense 'uniform_block_sparse'. "),
        (Selection(strategies=("usp",)), "no sweep of suite dense has strategies; leave out --strategy, or"),
    ],
)
def test_a_selection_that_leaves_nothing_says_so(selection, said):
    suite = load_suite("dense")
    with pytest.raises(RequestError) as refused:
        expand(suite, [*suite.distributions, "naive", "sdpa", "own"], selection)
    assert str(refused.value).startswith(said)
    assert "--" not in str(refused.value).replace("--strategy", "")
