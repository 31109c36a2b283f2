"""One problem as a suite: it says what it was told and no more, and comes back from cases and records as it went in."""

import pytest

from longca import masks
from longca.errors import MaskError, RequestError
from longca.manifests import Device
from longca.plugins import registry
from longca_bench.measuring.case_record import identity, record_of
from longca_bench.measuring.records import Record
from longca_bench.measuring.status import Status
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite
from longca_bench.suites.suite import Suite

from .test_parallel_cases import manifest

DOCUMENTS = [40, 1, 24]


@pytest.mark.parametrize("given", [DOCUMENTS, tuple(DOCUMENTS)])
def test_documents_survive_the_way_to_the_records(given):
    said = problem_suite("causal_document", seqlens=[65], factors={"documents": given}, directions=["forward"])
    suite = Suite.model_validate_json(said.model_dump_json(exclude_defaults=True))
    assert (suite, suite.digest) == (said, said.digest)
    (case,) = expand(suite, ["naive"])
    assert case.mask == masks.build("causal_document", 65, documents=DOCUMENTS)
    device = Device("cpu")
    fields = identity(suite, case, device, registry())
    record = record_of(fields, Status.OOM, "")
    assert Record.model_validate_json(record.model_dump_json()) == record
    assert record.factors == {"documents": tuple(DOCUMENTS)}
    (again,) = expand(problem_suite("causal_document", seqlens=[65], factors=record.factors), ["naive"])[:1]
    assert again.digest(str(device)) == record.case, "a run can be resumed"


def test_the_digest_is_of_what_was_asked():
    def digest(**arguments):
        return problem_suite(
            "causal_document", **{"seqlens": [65], "factors": {"documents": DOCUMENTS}, **arguments}
        ).digest

    assert digest() == digest()
    others = [{"factors": {"documents": DOCUMENTS[::-1]}}, {"factors": {}}, {"heads": ["4:2"]}, {"seeds": [1]}]
    assert len({digest(), *(digest(**other) for other in others)}) == 1 + len(others)


def test_every_value_is_taken():
    suite = problem_suite(
        "uniform_block_sparse", seqlens=[256, 512], factors={"block": 64, "kept": 0.5, "heads": 1},
        heads=["4:2", "4:4"], head_dims=[32, 64], dtypes=["float32"],
        directions=["backward"], kernels=["naive"], seeds=[3, 4],
    )  # fmt: skip
    cases = expand(suite, ["naive", "sdpa"])
    assert len(cases) == 2**4
    assert {case.factors for case in cases} == {(("block", 64), ("heads", 1), ("kept", 0.5))}
    assert {case.mask.heads for case in cases} == {1}


def test_strategies_are_for_ranks():
    ring = manifest("ring", ("ring",))
    suite = problem_suite(
        "causal", seqlens=[64], strategies=["ring"], placements=["zigzag"], meshes={"ring": ["2"]}, kernels=["naive"]
    )
    cases = expand(suite, ["naive"], strategies={"ring": ring}, ranks=2)
    assert {(case.parallel.placement, case.parallel.mesh_text) for case in cases if case.parallel} == {
        ("zigzag", "ring=2")
    }


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"factors": {"window": 3}}, MaskError, "causal_document takes no factor 'window'; it takes documents"),
        ({"factors": {"documents": [40, 23]}}, MaskError, "documents sum to 63 tokens, but seqlen is 64"),
        ({"seqlens": [64, 65], "factors": {"documents": [64]}}, MaskError, "documents sum to 64 .* seqlen is 65"),
        ({"seqlens": [0]}, RequestError, "^one problem of causal_document: seqlens: should be greater than .*, not 0$"),
        ({"heads": ["4:3"]}, RequestError, "heads are '4:3'; give query heads that are a multiple of KV heads"),
        ({"dtypes": ["bf17"]}, RequestError, "dtypes: unknown dtype 'bf17'"),
        ({"placements": ["zigzag"]}, RequestError, "placements are for strategies; give those too$"),
    ],
)
def test_what_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        problem_suite("causal_document", **{"seqlens": [64], **arguments})
