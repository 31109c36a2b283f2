from dataclasses import replace

import pytest

from longca.errors import RequestError, UnknownNameError
from longca.manifests import StrategyManifest
from longca_bench.suites.cases import Selection, absent, expand
from longca_bench.suites.meshes import equal_mesh
from longca_bench.suites.one_problem import problem_suite
from longca_bench.suites.suite import load_suite


def manifest(name, axes, placements=("contiguous", "zigzag", "zigzag_document", "balanced"), **more):
    about = {"title": name, "upstream": "https://example.org", "license": "MIT"}
    where = {"layout": "somewhere:layout", "implementation": "somewhere:Strategy"}
    return StrategyManifest(name=name, axes=axes, placements=placements, **about, **where, **more)


STRATEGIES = {
    "ulysses": manifest("ulysses", ("ulysses",), ("contiguous",)),
    "ring_p2p": manifest("ring_p2p", ("ring",)),
    "ring_all_gather": manifest("ring_all_gather", ("ring",)),
    "usp": manifest("usp", ("ring", "ulysses")),
    "loongtrain": manifest("loongtrain", ("outer", "inner", "heads")),
}
FOUR = {"strategies": STRATEGIES, "ranks": 4}


def sweep(tmp_path, text=""):
    said = """
name = "mine"
version = 1
[[sweep]]
patterns = ["causal"]
tokens_per_rank = [16]
strategies = ["usp", "ulysses"]
heads = ["4:2"]
head_dims = [32]
dtypes = ["float32"]
"""
    path = tmp_path / "mine.toml"
    path.write_text(said + text, "utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("ranks", "axes", "sizes"),
    [
        (4, 1, (4,)),
        (8, 2, (2, 4)),
        (12, 2, (3, 4)),
        (4, 3, (1, 2, 2)),
        (7, 2, (1, 7)),
    ],
)
def test_equal_meshes(ranks, axes, sizes):
    assert equal_mesh(ranks, axes) == sizes


def test_meshes_that_make_up_the_ranks_are_taken(tmp_path):
    suite = load_suite(sweep(tmp_path, '[sweep.meshes]\nusp = ["1x4", "2x4", "ulysses=2,ring=2"]\n'))
    narrow = Selection(strategies=("usp",), directions=("forward",))
    found = {
        ranks: [
            case.parallel.mesh_text for case in expand(suite, ["naive"], narrow, strategies=STRATEGIES, ranks=ranks)
        ]
        for ranks in (4, 8, 6)
    }
    assert found == {
        4: ["ring=1,ulysses=4", "ulysses=2,ring=2"],
        8: ["ring=2,ulysses=4"],
        6: ["ring=2,ulysses=3"],
    }


def test_strategies_and_placements_narrow():
    suite = load_suite("distributed_quick")
    narrow = Selection(strategies=("ring_p2p",), placements=("zigzag",), seqlens=(256,), patterns=("causal",))
    cases = expand(suite, ["naive", "sdpa"], narrow, **FOUR)
    assert {(c.parallel.strategy, c.parallel.placement, c.seqlen) for c in cases} == {("ring_p2p", "zigzag", 256)}
    assert len(cases) == 2 * 2, "kernels and directions"


def test_transports_multiply_the_cases_of_strategies_that_have_them(tmp_path):
    both = {**STRATEGIES, "usp": manifest("usp", ("ring", "ulysses"), transports=("collectives", "copy_engine"))}
    suite, known = (
        load_suite(sweep(tmp_path, 'transports = ["auto", "copy_engine"]\n')),
        {"strategies": both, "ranks": 4},
    )
    narrow = Selection(directions=("forward",))
    cases = expand(suite, ["naive"], narrow, **known)
    found = [(case.parallel.strategy, str(case.parallel.transport)) for case in cases]
    assert found == [("usp", "auto"), ("usp", "copy_engine"), ("ulysses", "auto")]
    with pytest.raises(RequestError, match=r"transports.*should be 'auto', 'collectives' or 'copy_engine'"):
        load_suite(sweep(tmp_path, 'transports = ["copy_engines"]\n'))


def test_a_transport_that_the_strategy_chooses_leaves_digests_as_they_were(tmp_path):
    narrow = Selection(directions=("forward",), strategies=("usp",))
    (case,) = expand(load_suite(sweep(tmp_path)), ["naive"], narrow, **FOUR)
    forced = replace(case, parallel=replace(case.parallel, transport="collectives"))
    assert case.digest("cpu") == "0e4ed2e1ee396ac3" != forced.digest("cpu")


def test_what_is_not_installed_is_named():
    suite = load_suite("distributed_quick")
    left_out = absent(suite, ["naive", "sdpa", "usp"])
    assert set(left_out) == {"ulysses", "ring_p2p", "ring_all_gather", "loongtrain"}
    assert set(absent(suite, ["naive", "sdpa"], Selection(strategies=("usp",)))) == {"usp"}
    assert not expand(suite, ["naive", "sdpa"], strategies={}, ranks=2)
    with pytest.raises(RequestError, match="strategy 'usp' is not here"):
        expand(suite, ["naive", "sdpa"], Selection(strategies=("usp",)), strategies={}, ranks=2)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ('placements = ["zigzagged"]', UnknownNameError, "Did you mean zigzag"),
        ('[sweep.meshes]\nusp = ["4"]', RequestError, "a size for each of ring, ulysses"),
        ('[sweep.meshes]\nusp = ["ring=2,rings=2"]', RequestError, "a size for each of ring, ulysses"),
        ('[sweep.meshes]\nusp = ["0x4"]', RequestError, "is no mesh"),
        ("seqlens = [64]", RequestError, "give seqlens, or tokens_per_rank"),
    ],
)
def test_refused(tmp_path, text, error, said):
    with pytest.raises(error, match=said):
        expand(load_suite(sweep(tmp_path, text + "\n")), ["naive"], **FOUR)


def test_sweeps_of_one_device_take_no_ranks(tmp_path):
    with pytest.raises(RequestError, match="has no strategies"):
        expand(load_suite("quick"), ["naive"], **FOUR)
    with pytest.raises(RequestError, match="for several ranks"):
        expand(load_suite("distributed_quick"), ["naive"], strategies=STRATEGIES)
    path = tmp_path / "mine.toml"
    path.write_text((tmp_path / sweep(tmp_path)).read_text().replace('strategies = ["usp", "ulysses"]\n', ""), "utf-8")
    with pytest.raises(RequestError, match="are for strategies"):
        load_suite(str(path))


def test_digests_are_those_of_the_first_records():
    assert load_suite("dense").digest == "16306b1c3ab43c14"
    first = problem_suite("full", seqlens=[1024], heads=["4:2"], head_dims=[64], dtypes=["float32"])
    assert expand(first, ["naive", "sdpa"])[0].digest("cpu") == "19aaa8101258bcf1"
