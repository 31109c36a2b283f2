"""`longca run`, as it is called: what it refuses, and what it says beforehand and as it goes."""

import json

import pytest

from longca_bench.cli.run import run_folder

BRACKETS = """
@hookimpl
def provide_kernel():
    return [kernel("bracketed", install="pip install 'some[extra]'", requires=("not-there>=2",))]
"""


@pytest.fixture
def fakes(fakes):
    fakes.env["LONGCA_PLUGINS"] = ""
    return fakes


def test_install_lines_can_be_pasted(fakes):
    fakes.add("some-kernels", BRACKETS)
    narrow = ("--mask", "full", "--seqlen", "64", "--direction", "forward")
    said = fakes.says("run", "quick", "--kernel", "bracketed", *narrow, "--dry-run", LONGCA_PLUGINS="some-kernels")
    assert "pip install 'some[extra]'" in said


SMALL = ("--heads", "4:2", "--head-dim", "32", "--dtype", "float32", "--device", "cpu", "--kernel", "naive")


def test_one_problem_is_measured_and_resumed(fakes, tmp_path):
    (tmp_path / "own.txt").write_text("40\n1\n24\n", "utf-8")
    ask = ("run", "causal_document", "--documents", str(tmp_path / "own.txt"), *SMALL, "--out", str(tmp_path / "run"))
    (record,) = json.loads(fakes.says(*ask, "--direction", "forward", "--json"))
    assert (record["status"], record["suite"], record["seqlen"]) == ("ok", "causal_document", 65)
    assert record["factors"] == {"documents": [40, 1, 24]}
    ran = fakes.longca(*ask, "--direction", "forward", "--resume")
    assert (ran.returncode, ran.stderr) == (0, "1 cases were measured before and are kept\n")
    assert "causal_document 3 documents" in ran.stdout
    assert "cannot resume" in fakes.refuses(*ask, "--direction", "backward", "--resume")
    assert "torch threads was" in fakes.refuses(*ask, "--direction", "forward", "--resume", OMP_NUM_THREADS="3")


def test_one_problem_is_said_beforehand(fakes, tmp_path):
    file = tmp_path / "own.txt"
    file.write_text("40\n24\n", "utf-8")
    ask = ("run", "causal_document", "--lengths", str(file), "--direction", "forward", "--dry-run", "--device", "cpu")
    ran = fakes.longca(*ask, "--json")
    assert [(row["kernel"], row["seqlen"], row["heads"]) for row in json.loads(ran.stdout)] == [
        ("naive", 4096, "32:8"),
        ("sdpa", 4096, "32:8"),
    ]
    drawn = "documents are drawn from it at random"
    said = f"{file}: 2 lengths, numbers in text; {drawn}. --documents {file} takes exactly these"
    assert (ran.returncode, ran.stderr) == (0, f"{said}\n")


def test_a_mask_that_cannot_be_made_leaves_no_folder(fakes, tmp_path):
    suite = tmp_path / "mine.toml"
    suite.write_text(
        'name = "mine"\nversion = 1\n[[sweep]]\npatterns = ["causal_document"]\nseqlens = [64]\nheads = ["4:2"]\n'
        'head_dims = [32]\ndtypes = ["float32"]\n[sweep.factors]\ncausal_document = { documents = [40, 23] }\n',
        "utf-8",
    )
    said = fakes.refuses("run", str(suite), "--device", "cpu", "--out", str(tmp_path / "run"))
    assert "documents sum to 63 tokens, but seqlen is 64" in said
    assert not (tmp_path / "run").exists()


def test_a_forward_and_a_backward_kernel_that_are_chosen_apart(fakes, tmp_path):
    narrow = ("--mask", "causal", "--seqlen", "64")
    kernels = ("--kernel", "naive+sdpa", "--kernel", "naive")
    ran = fakes.longca("run", "quick", *kernels, *narrow, "--device", "cpu", "--out", str(tmp_path / "out"), "--json")
    assert ran.returncode == 0, ran.stderr
    found = {(r["kernel"], r["direction"]): (r["status"], r["form"], r["distribution"]) for r in json.loads(ran.stdout)}
    assert found == {
        ("naive", "forward"): ("ok", "row_intervals", "longca-core"),
        ("naive", "backward"): ("ok", "row_intervals", "longca-core"),
        ("naive+sdpa", "forward"): ("ok", "row_intervals", "longca-core"),
        ("naive+sdpa", "backward"): ("ok", "row_intervals + causal", "longca-core"),
    }
    planned = fakes.longca("run", "quick", *kernels[:2], *narrow, "--direction", "backward", "--dry-run")
    *about, _, case, duration = planned.stdout.splitlines()
    assert about[0] == "causal of 64 tokens"
    assert ", backward, on " in about[1]
    assert case.startswith("naive+sdpa")
    assert case.endswith("row_intervals + causal")
    assert duration.startswith("1 case: about "), "the run before is evidence"


def test_nothing_measured_is_exit_code_1_with_the_reason(fakes, tmp_path):
    fakes.add("some-kernels", BRACKETS)
    narrow = ("--mask", "full", "--seqlen", "64", "--direction", "forward", "--device", "cpu")
    env = {"LONGCA_PLUGINS": "some-kernels"}
    ran = fakes.longca("run", "quick", "--kernel", "bracketed", *narrow, "--out", str(tmp_path / "run"), **env)
    assert ran.returncode == 1
    assert "1 case: 1 unsupported" in ran.stdout
    assert ran.stderr.startswith("nothing was measured: bracketed needs not-there>=2")
    both = ("--ab", "sdpa", "bracketed")
    ran = fakes.longca("run", "quick", *both, *narrow, "--out", str(tmp_path / "ab"), **env)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[1].startswith("[1/2] sdpa full 64 forward: ok"), "unsupported cases are only counted"
    assert ran.stderr.splitlines()[2].startswith("sdpa and bracketed were measured together on no case: bracketed")
    ran = fakes.longca("run", "quick", *both, *narrow, "--out", str(tmp_path / "ab"), "--resume", **env)
    assert ran.returncode == 1


FAR = """
@hookimpl
def provide_kernel():
    return [kernel("far", offer("full", cpu=False, verified_on=">=8.0"))]
"""


def test_the_progress_counts_the_kernels_of_this_device(fakes, tmp_path):
    fakes.add("far-kernels", FAR)
    narrow = ("--mask", "full", "--seqlen", "64", "--direction", "forward", "--device", "cpu", "--kernel", "far")
    ask = ("run", "quick", *narrow, "--kernel", "naive", "--out", str(tmp_path / "run"))
    ran = fakes.longca(*ask, LONGCA_PLUGINS="far-kernels")
    assert ran.returncode == 0, ran.stderr
    before, done = ran.stderr.splitlines()
    assert before.startswith("1 case: about 1 s on two quiet cores")
    assert done.startswith("[1/1] naive full 64 forward")
    *_, winner, meaning, where = ran.stdout.splitlines()
    assert meaning.startswith("Times are of this CPU")
    assert (winner.partition(":")[0], where.startswith("records: ")) == ("full", True)
    further = "1 further case unsupported, of kernels that run on other devices only: far\n"
    assert f"\n1 case: 1 ok\n{further}" in ran.stdout
    planned = fakes.says("run", "quick", *narrow, "--kernel", "naive", "--dry-run", LONGCA_PLUGINS="far-kernels")
    assert planned.splitlines()[3].startswith("naive")
    assert further in planned
    alone = fakes.says("run", "quick", *narrow, "--dry-run", LONGCA_PLUGINS="far-kernels")
    assert alone.splitlines()[3].startswith("far")
    assert "unsupported: far runs on CUDA devices" in alone


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = [run_folder(None, "quick", resume=False)]
    for _ in range(3):
        found[-1].mkdir(parents=True)
        found.append(run_folder(None, "quick", resume=False))
    assert not found[-1].exists()
    assert len(set(found)) == 4


def test_a_plan_in_json_has_a_row_for_each_case_and_needs_no_torch(fakes):
    narrow = ("--seqlen", "64", "--direction", "forward", "--kernel", "naive", "--mask", "full", "--mask", "causal")
    said = fakes.says("run", "quick", *narrow, "--dry-run", "--device", "cpu", "--json", without=("torch",))
    found = [(row["kernel"], row["pattern"], row["seqlen"], row["form"], row["reasons"]) for row in json.loads(said)]
    assert found == [("naive", "full", 64, "row_intervals", []), ("naive", "causal", 64, "row_intervals", [])]
