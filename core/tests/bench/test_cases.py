import pytest

from longca.bench.cases import Selection, expand
from longca.bench.suite import load_suite
from longca.errors import MaskError, RequestError, UnknownNameError
from longca.manifests import Device
from longca.masks import PATTERNS


def test_quick_is_the_whole_matrix():
    cases = expand(load_suite("quick"), ["naive", "sdpa"])
    lengths = load_suite("quick").sweep[0].seqlens
    assert len(cases) == len(set(cases)) == 2 * len(PATTERNS) * len(lengths) * 2
    assert {case.pattern for case in cases} == set(PATTERNS)


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


def test_absurd_length_is_refused_before_anything_is_drawn():
    with pytest.raises(MaskError, match="1073741824"):
        expand(load_suite("quick"), ["naive"], Selection(seqlens=(10**12,)))


def test_kernels_share_masks_and_digests_tell_cases_apart():
    cases = expand(load_suite("quick"), ["naive", "sdpa"], Selection(seqlens=(256,)))
    digests = {case.digest("cpu") for case in cases}
    assert len(digests) == len(cases)
    assert cases[0].digest("cpu") != cases[0].digest("other")
    pairs = {}
    for case in cases:
        pairs.setdefault((case.pattern, case.seed), set()).add(case.mask.digest)
    assert all(len(masks) == 1 for masks in pairs.values())


def test_block_sparse_masks_are_per_kv_head():
    cases = expand(load_suite("quick"), ["naive"], Selection(patterns=("uniform_block_sparse",), seqlens=(256,)))
    problem = cases[0].problem(Device("cpu"))
    assert problem.mask.heads == problem.heads_kv == 2


def test_a_million_cases_are_refused():
    suite = load_suite("quick")
    sweep = suite.sweep[0].model_copy(update={"seeds": tuple(range(100_000))})
    with pytest.raises(RequestError, match="more than 100000 cases"):
        expand(suite.model_copy(update={"sweep": (sweep,)}), ["naive", "sdpa"])
