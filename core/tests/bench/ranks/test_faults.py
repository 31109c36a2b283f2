"""Ranks that raise, die, hang or take all memory: for real, through the command line."""

import signal
import time

import pytest

#: What the case of each kernel must be found to be, and what must be said of it.
FAULTS = {
    "raises": ("error", "rank 1 of 2: RuntimeError: no kernel image is available, in phase 'kernel forward'"),
    "exits": ("crashed", "rank 1 of 2: the worker exited with code 7, in phase 'kernel forward'"),
    "takes_all_memory": ("oom", "rank 1 of 2: "),
    "wrong": ("wrong", "out on rank 1: "),
    "wrong_later": ("wrong", "out of a timed call on rank 1: "),
    "hangs": ("timeout", "rank 1 of 2 is still in phase 'kernel forward' after 20 s, and the others wait"),
    "hangs_planning": ("timeout", "rank 1 of 2 is still in phase 'plan' after 20 s, and the others wait"),
}
#: Those of a usual run: a rank that raises, dies and hangs. A trial's own tests have wrong results.
FEW = ["raises", "exits", "hangs"]


def wait_until(is_so, seconds=600):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("names", [FEW, pytest.param(sorted(FAULTS.keys() - FEW), marks=pytest.mark.exhaustive)])
def test_the_culprit_is_named_and_the_next_case_is_unaffected(toys, names):
    faults = {name: FAULTS[name] for name in names}
    options = [option for name in faults for option in ("--kernel", name)]
    options += ["--placement", "evenly", "--gpus", "2", "--timeout", "20"]
    process = toys.start(*options)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, output + errors
    found = {(record["kernel"], record["direction"]): record for record in toys.records()}
    assert len(found) == 2 * len(faults)
    for name, (status, said) in faults.items():
        record = found[name, "forward"]
        assert (record["status"], said in record["message"]) == (status, True), record["message"]
        assert record["advice"]
        assert record["median"] is None
        assert found[name, "backward"]["status"] == "ok", found[name, "backward"]["message"]
    if "wrong" in faults:
        (finding,) = [finding for finding in found["wrong", "forward"]["findings"] if not finding["passed"]]
        assert (finding["tensor"], finding["head"], finding["token"]) == ("out on rank 1", 2, 79)
    assert "Traceback" not in errors
    assert not toys.left()


#: What the case of each strategy must be found to be, and what must be said of it.
STRATEGIES = {
    "patches_time": ("suspect", "rank 1: the clocks disagree"),
    "returns_list": ("wrong", "out on rank 1: the strategy returned a list instead of a tuple of out, lse"),
    "wrong_now_and_then": ("wrong", "out of a timed call on rank 1: "),
    "repeats_itself": ("wrong", "of a timed call on rank "),
    "changes_state": ("wrong", "state on rank 1: the strategy changes global state: default dtype"),
    "changes_inputs_later": ("wrong", "v of a timed call on rank 1: the strategy changed this input"),
}
#: Those of a usual run. A trial's own tests have the others, in one process.
CHEATS = ["patches_time", "returns_list", "changes_state"]
OTHERS = sorted(STRATEGIES.keys() - CHEATS)


@pytest.mark.slow
@pytest.mark.parametrize("names", [CHEATS, pytest.param(OTHERS, marks=pytest.mark.exhaustive)])
def test_strategies_that_are_wrong_are_named_with_their_rank(toys, names):
    options = ["--kernel", "honest", "--mask", "causal", "--direction", "forward", "--gpus", "2", "--timeout", "180"]
    options += [option for name in ("toy", *names) for option in ("--strategy", name)]
    process = toys.start(*options)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 1, output + errors
    found = {record["strategy"]: record for record in toys.records()}
    assert set(found) == {"toy", *names}
    assert found["toy"]["status"] == "ok", found["toy"]["message"]
    for name in names:
        (status, said), record = STRATEGIES[name], found[name]
        assert (record["status"], said in record["message"]) == (status, True), record["message"]
    assert "Traceback" not in errors
    assert not toys.left()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.exhaustive)])
def test_a_run_that_is_ended_leaves_nothing_running(toys, sent):
    process = toys.start("--kernel", "naive", "--kernel", "hangs", "--placement", "evenly", "--gpus", "2")
    wait_until(lambda: len(toys.records()) == 2)
    assert any(b"worker_process" in line for line in toys.processes().values()), "the workers are seen"
    process.send_signal(sent)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == (130 if sent == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in errors
    assert errors.count(f"interrupted: 2 of 4 cases have records, in {toys.out}. ") == (sent == signal.SIGINT)
    assert [record["status"] for record in toys.records()] == ["ok", "ok"]
    assert not toys.left()


@pytest.mark.slow
def test_a_pickle_that_a_worker_writes_into_the_store_is_not_run(toys):
    process = toys.start("--kernel", "writes_pickles", "--placement", "evenly", "--gpus", "2")
    _, errors = process.communicate(timeout=600)
    assert not (toys.folder / "unpickled").exists()
    assert process.returncode == 2, errors
    assert "another program wrote it" in errors
    assert "Traceback" not in errors
    assert not toys.left()
