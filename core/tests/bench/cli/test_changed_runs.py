"""`longca report`, `compare` and `run` on folders that were changed, and on files that are none."""

import json
import os

import pytest

from longca_bench.measuring.run_folder import RunFolder

from ..reports.runs import ENVIRONMENT, record, write_run

TORN = '{"case": "torn'
#: A field of a record that reports cannot read, and the view that reads it.
ODD = {
    "kept": ({"factors": {"kept": [1]}}, "throughput"),
    "communication": ({"communication": {"p2p": {}}}, "strategy-time"),
    "all": (
        {"communication": {"p2p": dict.fromkeys(("calls", "bytes", "seconds", "algbw", "busbw"), 1)}},
        "collectives",
    ),
    "gpu": ({"gpu": {"sm_clock": "x"}}, "results"),
    "throttle": ({"gpu": {"throttle": 5}}, "results"),
    "machine": ({"machine": {"cores": 1}}, "results"),
    "waited": ({"machine": {"busy": False, "why": "", "waited": None, "measured": 1}}, "results"),
    "limit": ({"findings": [{"tensor": "out", "passed": True, "error": 1.0, "limit": "x"}]}, "results"),
    "direction": ({"direction": ""}, "strategy-shares"),
    "mesh": ({"strategy": "usp", "placement": "zigzag", "world_size": 2, "mesh": "x"}, "strategy-memory"),
}
EXHAUSTIVE = {"communication", "all", "throttle", "machine", "limit", "mesh"}


@pytest.fixture
def run(tmp_path):
    """A run of three kernels, with the chain of its lines."""
    folder = RunFolder(tmp_path / "run", ENVIRONMENT)
    for kernel, time in (("naive", 2e-3), ("sdpa", 1e-3), ("flex", 3e-3)):
        folder.append(record(kernel, time=time))
    folder.close()
    return folder.path


@pytest.fixture
def changed(run):
    """The run, with the second kernel made faster, and a line that is torn."""
    file = run / "records.jsonl"
    first, second, third, _ = file.read_text().split("\n")
    faster = record("sdpa", time=1e-5, previous=json.loads(second)["previous"]).model_dump_json()
    file.write_text("\n".join((first, faster, third, TORN)))
    return run


def test_a_report_names_wrong_lines_and_shows_the_others(fakes, changed, tmp_path):
    ran = fakes.longca("report", str(changed), "--format", "terminal", "--format", "markdown", "--format", "html")
    assert ran.returncode == 1
    torn, altered, about = ran.stderr.splitlines()
    assert f"{changed}/records.jsonl, line 4: it is torn" in torn
    assert altered == f"{changed}/records.jsonl, line 2: it was changed after it was written"
    assert about == "Results leave out the wrong lines, and have all intact ones."
    assert "2 cases: 2 ok" in ran.stdout
    assert "sdpa" not in ran.stdout
    for page in ("report.md", "report.html"):
        assert "line 2: it was changed after it was written" in (changed / "report" / page).read_text("utf-8")
    found = fakes.longca("report", str(changed), "--json")
    assert (found.returncode, json.loads(found.stdout)["complaints"]) == (1, ran.stderr.splitlines())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "view"),
    [pytest.param(*odd, id=name, marks=[pytest.mark.exhaustive] * (name in EXHAUSTIVE)) for name, odd in ODD.items()],
)
def test_a_record_that_no_report_can_read_is_named_and_left_out(fakes, tmp_path, change, view):
    folder = write_run(tmp_path / "odd", [record("sdpa"), record("naive")])
    first, second = (folder / "records.jsonl").read_text().splitlines()
    (folder / "records.jsonl").write_text(f"{first}\n{json.dumps({**json.loads(second), **change})}\n")
    field = list(change)[-1]
    for command in (
        ("report", str(folder), "--format", "html", "--format", "markdown", "--format", "terminal"),
        ("report", str(folder), "--format", "terminal", "--view", view),
        ("compare", str(folder), str(folder)),
    ):
        ran = fakes.longca(*command)
        named, *_ = ran.stderr.splitlines()
        assert ran.returncode == 1
        assert "Traceback" not in ran.stderr
        assert f"{folder}/records.jsonl, line 2: {field}" in named
    advice = ("recommend", "causal", "--seqlen", "1024", "--device", "cpu", "--records", str(folder))
    assert "Traceback" not in fakes.longca(*advice).stderr


@pytest.mark.parametrize(
    "nested", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, "[" * 10**6], ids=["lists", "objects", "open"]
)
def test_an_environment_that_is_nested_deeply_is_refused(fakes, tmp_path, nested):
    folder = write_run(tmp_path / "deep", [record("sdpa")], None)
    (folder / "environment.json").write_text(f'{{"device": {nested}}}')
    for command in (("report", str(folder)), ("compare", str(folder), str(folder))):
        assert f"cannot read {folder}/environment.json: it is nested" in fakes.refuses(*command)
    advice = ("recommend", "causal", "--seqlen", "1024", "--device", "cpu", "--records", str(folder))
    assert "it is nested more than 64 levels deep" in fakes.refuses(*advice)


def test_a_comparison_leaves_wrong_lines_out(fakes, changed):
    ran = fakes.longca("compare", str(changed), str(changed), "--json")
    found = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert [pair["kernel"] for pair in found["pairs"]] == ["naive", "flex"]
    assert ran.stderr.splitlines() == found["complaints"]
    assert ran.stderr.count("line 2: it was changed") == 2


def test_many_wrong_lines_are_counted(fakes, run):
    file = run / "records.jsonl"
    file.write_text(file.read_text() + f"{TORN}\n" * 1000)
    ran = fakes.longca("report", str(run))
    assert ran.returncode == 1
    assert "990 more lines are wrong or missing" in ran.stderr
    assert len(ran.stderr.splitlines()) == 12


def test_a_run_without_an_intact_line_is_refused(fakes, run):
    (run / "records.jsonl").write_text(TORN)
    assert "line 1: it is torn" in fakes.refuses("report", str(run))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("run/records.jsonl", ["report", "run"]),
        ("run/environment.json", ["compare", "run", "run"]),
        ("run/records.jsonl", ["recommend", "causal", "--seqlen", "64", "--records", "run"]),
        ("run/records.jsonl", ["run", "quick", "--device", "cpu", "--resume", "--out", "run"]),
        ("run/advice.json", ["run", "causal", "--recommended", "--device", "cpu", "--resume", "--out", "run"]),
    ],
)
def test_a_fifo_is_refused_and_not_waited_for(fakes, run, name, command):
    path = run.parent / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    arguments = [
        str(run.parent / word) if word in ("run", name) and place else word for place, word in enumerate(command)
    ]
    ran = fakes.python("-m", "longca", *arguments, timeout=120)
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False)
    assert "it is a FIFO, and a regular file is needed" in ran.stderr


#: A kernel that puts a FIFO where the run's seal will be.
PLANTS = """
import os
from longca_builtin.naive import Naive

class Plants(Naive):
    def forward(self, q, k, v, plan, **buffers):
        if not os.path.lexists({0!r}):
            os.mkfifo({0!r})
        return super().forward(q, k, v, plan, **buffers)

@hookimpl
def provide_kernel():
    takes = offer("row_intervals", dtypes=("float32",), backward="external")
    return [kernel("plants", takes, implementation="plants:Plants")]
"""


def test_a_run_says_that_it_has_no_seal(fakes):
    out = fakes.root / "out"
    fakes.add("plants", PLANTS.format(str(out / "seal.json")))
    about = ("--heads", "2:1", "--head-dim", "16", "--dtype", "float32", "--direction", "forward", "--device", "cpu")
    ran = fakes.longca("run", "causal", "--seqlen", "64", "--kernel", "plants", *about, "--out", str(out))
    assert "1 case: 1 ok" in ran.stdout
    assert (ran.returncode, ran.stderr.splitlines()[-1].partition(". ")[0]) == (
        1,
        f"error: cannot write {out}/seal.json: it is a FIFO, and a regular file is needed",
    )


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "FIFO"), (os.mkdir, "folder")])
def test_a_report_names_a_seal_that_is_no_file_and_shows_the_records(fakes, run, make, kind):
    (run / "seal.json").unlink()
    make(run / "seal.json")
    for command in (("report", str(run)), ("compare", str(run), str(run))):
        ran = fakes.longca(*command)
        assert ran.returncode == 1
        assert f"cannot read {run}/seal.json: it is a {kind}, and a regular file is needed" in ran.stderr
        assert "sdpa" in ran.stdout


def test_a_linked_suite_is_read(fakes, tmp_path):
    suite = """
    name = "linked"
    version = 1
    [[sweep]]
    patterns = ["causal"]
    seqlens = [64]
    heads = ["2:1"]
    head_dims = [32]
    dtypes = ["float32"]
    """
    (tmp_path / "real.toml").write_text(suite)
    (tmp_path / "suite.toml").symlink_to("real.toml")
    assert "causal" in fakes.says("run", str(tmp_path / "suite.toml"), "--dry-run", "--device", "cpu")
