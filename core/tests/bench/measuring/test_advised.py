"""The recommended ways of a problem, as a suite: what is chosen, and that the problem's own records tell nothing."""

import pytest

from longca.errors import RequestError
from longca.manifests import Problem
from longca.manifests.devices import cpu_device
from longca.masks import build
from longca_advice.choices import Choice, Proof, Recommendation, Refused, Seconds, Unmeasured
from longca_advice.devices import evidence_name
from longca_advice.evidence import Row, Run
from longca_advice.history import append
from longca_advice.work import work_of
from longca_bench.measuring import advised
from longca_bench.measuring.advised import advise, problems, suite_of_choices
from longca_bench.measuring.outcome import MeasuredChoice, Outcome
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite

from ..suites.test_parallel_cases import STRATEGIES

SHAPE = {"heads": ["4:2"], "head_dims": [32], "dtypes": ["float32"]}
CPU = cpu_device()


def choice(kernel, seconds, fits=True, install=(), **shared):
    time = Seconds(seconds, 2 * seconds, 3 * seconds, 2 * seconds, 4 * seconds)
    proof = Proof(1, "a run")
    return Choice(kernel, kernel, time, 0, fits, proof, "", 1.0, install=install, **shared)


@pytest.fixture
def found(monkeypatch):
    """Has advise find what the test says, and returns what recommend was asked."""
    asked = {}

    def say(*choices, unmeasured=(), refused=(), ranks=1):
        def answer(mask, **given):
            asked.update(given, mask=mask)
            return Recommendation({}, "a device", ranks, choices, unmeasured, refused, ("a note",))

        monkeypatch.setattr(advised, "recommend", answer)
        return asked

    return say


def one(pattern="causal", **said):
    return next(problems(problem_suite(pattern, **{"seqlens": [64], **SHAPE, **said})))


def measured(core, seqlen, seconds):
    """A record of naive's forward as evidence."""
    mask = build("causal", seqlen)
    problem = Problem(mask=mask, heads_q=4, heads_kv=2, head_dim=32, dtype="float32", device=CPU, direction="forward")
    about = {"kernel": "naive", "direction": "forward", "heads_q": 4, "heads_kv": 2, "head_dim": 32, "dtype": "float32"}
    work = tuple(vars(work_of(mask, core.resolve("naive", problem).form)).values())
    run = Run(run="this machine", device=evidence_name(CPU))
    told = {"seconds": seconds, "seqlen": seqlen, "density": mask.density, "mask": mask.digest}
    return Row(**about, **told, work=work, run=run)


def test_a_suite_has_a_problem_for_each_mask_and_shape():
    suite = problem_suite(
        "uniform_block_sparse", seqlens=[256, 512], factors={"block": 64, "kept": 0.5}, heads=["4:2", "4:4"],
        head_dims=[32], dtypes=["float32"], seeds=[1, 2],
    )  # fmt: skip
    found = list(problems(suite))
    assert len(found) == 2 * 2 * 2
    assert {len(expand(suite.model_copy(update={"sweep": (sweep,)}), ["naive"])) for sweep in found} == {2}
    assert {sweep.factors["uniform_block_sparse"]["kept"] for sweep in found} == {0.5}


def test_the_problem_is_what_is_asked_for(core, found):
    asked = found(choice("sdpa", 1.0))
    advise(one("causal", kernels=["sdpa"]), CPU, core, most=3)
    assert (asked["mask"], asked["heads"], asked["kernels"]) == (build("causal", 64), (4, 2), ["sdpa"])
    assert (asked["training"], asked["ranks"], asked["unseen"]) == (True, 1, True)
    advise(one(directions=["forward"]), CPU, core, most=3)
    assert (asked["training"], asked["kernels"]) == (False, [])


def test_the_first_that_are_installed_and_fit_are_taken(core, found):
    missing = choice("far", 0.5, lacks=("it",), install=("pip install it",))
    found(missing, choice("sdpa", 1.0), choice("naive", 3.0), choice("other", 9.0, fits=False))
    said = advise(one(), CPU, core, most=3)
    assert ([way.kernel for way in said.ways], said.ranked) == (["sdpa", "naive"], True)
    assert (said.left_out, said.notes, said.asked) == ({"far": "pip install it"}, ("a note",), 3)


def test_without_evidence_valid_kernels_keep_their_order(core, found):
    valid = [
        Unmeasured("sdpa", "no evidence"),
        Unmeasured("far", "no", lacks=("it",), install=("pip",)),
        Unmeasured("naive", "no"),
    ]
    found(unmeasured=valid)
    said = advise(one(), CPU, core, most=3)
    assert ([way.kernel for way in said.ways], said.ranked, said.left_out) == (["sdpa", "naive"], False, {"far": "pip"})
    assert {time.predicted for way in said.ways for time in way.times.values()} == {None}


def test_choices_know_the_cases_that_measure_them(core, found):
    found(choice("sdpa", 1.0), choice("naive", 2.0))
    suite = problem_suite("causal", seqlens=[64], **SHAPE)
    outcomes = [advise(problem, CPU, core, most=2) for problem in problems(suite)]
    cases = expand(suite_of_choices(suite, outcomes), core.kernels)
    assert [(case.kernel, case.direction) for case in cases] == [
        (kernel, direction) for kernel in ("sdpa", "naive") for direction in ("forward", "backward")
    ]
    known = [time.case for way in outcomes[0].ways for name, time in way.times.items() if name != "total"]
    assert known == [case.digest(str(CPU)) for case in cases]


def test_ranks_get_a_sweep_for_each_way():
    suite = problem_suite("causal", seqlens=[64], strategies=["*"], **SHAPE)
    ways = (
        MeasuredChoice(kernel="sdpa", strategy="usp", placement="zigzag", mesh="ulysses=2,ring=2"),
        MeasuredChoice(kernel="naive", strategy="ring_p2p", placement="balanced", mesh="ring=4"),
        MeasuredChoice(kernel="naive", strategy="ulysses"),
    )
    outcome = Outcome(problem={}, device="cpu", ranks=4, asked=3, ranked=True, ways=ways)
    cases = expand(suite_of_choices(suite, [outcome]), ["naive", "sdpa"], strategies=STRATEGIES, ranks=4)
    assert [(case.kernel, case.parallel.strategy, case.parallel.placement, case.parallel.mesh_text)
            for case in cases[::2]] == [
        ("sdpa", "usp", "zigzag", "ulysses=2,ring=2"),
        ("naive", "ring_p2p", "balanced", "ring=4"),
        ("naive", "ulysses", "auto", "ulysses=4"),
    ]  # fmt: skip


def test_a_strategy_without_evidence_gets_the_first_kernel_that_takes_the_problem(core, found, monkeypatch):
    monkeypatch.setattr(advised, "with_cases", lambda problem, outcome, *_: outcome)
    found(unmeasured=[Unmeasured("any kernel", "no evidence", "usp")], ranks=2)
    for kernels, taken in ((("*",), "naive"), (("sdpa",), "sdpa")):
        said = advise(one(strategies=["*"], kernels=kernels), CPU, core, most=3, ranks=2)
        assert [(way.kernel, way.strategy, way.placement) for way in said.ways] == [(taken, "usp", None)]


def test_placements_narrow_the_choices(core, found, monkeypatch):
    monkeypatch.setattr(advised, "with_cases", lambda problem, outcome, *_: outcome)
    about = {"strategy": "ring_p2p", "mesh": "ring=2"}
    found(choice("sdpa", 1.0, placement="zigzag", **about), choice("sdpa", 2.0, placement="balanced", **about), ranks=2)
    said = advise(one(strategies=["*"], placements=["balanced"]), CPU, core, most=3, ranks=2)
    assert [way.placement for way in said.ways] == ["balanced"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"directions": ["backward"]}, "leave out --direction backward"),
        ({"kernels": ["sdpa+naive"]}, "give --kernel sdpa --kernel naive"),
    ],
)
def test_what_no_recommendation_is_made_for(core, said, message):
    with pytest.raises(RequestError, match=message):
        advise(one(**said), CPU, core, most=3)


def test_nothing_to_measure_says_what_to_do(core, found):
    found(choice("far", 1.0, lacks=("far",), install=("pip install far",)))
    with pytest.raises(RequestError, match=r"Install one of them: far: pip install far$"):
        advise(one(), CPU, core, most=3)
    found(refused=[Refused("sdpa", None, ("it is too large",))])
    with pytest.raises(RequestError, match="nothing is recommended on a device: it is too large"):
        advise(one(), CPU, core, most=3)


def test_the_problems_own_records_tell_nothing(core):
    for seqlen in (32, 128):
        append(measured(core, seqlen, seqlen * 1e-5))
    ask = (one(directions=["forward"], kernels=["naive"]), CPU, core)
    before = advise(*ask, most=3)
    assert before.ranked
    append(measured(core, 64, 5.0))
    assert advise(*ask, most=3) == before
    wider = advise(one(directions=["forward"], kernels=["naive"], heads=["8:2"]), CPU, core, most=3)
    assert "learnt from 2 measured calls" in before.ways[0].notes[0]
    assert "learnt from 3 measured calls" in wider.ways[0].notes[0], "the record is evidence for other heads"
