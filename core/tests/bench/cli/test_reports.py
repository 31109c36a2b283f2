"""`longca report` and `longca compare`, as they are called."""

import json

import pytest

from ..reports.runs import ENVIRONMENT, record, write_run


@pytest.fixture
def runs(tmp_path):
    records = [record(), record("sdpa", time=5e-4), record("flex", status="oom", message="no [red]memory[/]")]
    other = {**ENVIRONMENT, "python": "3.12.0"}
    return (
        write_run(tmp_path / "a", records),
        write_run(tmp_path / "b", [record(time=2e-3), record("sdpa", time=1e-3)]),
        write_run(tmp_path / "c", records, other),
    )


def test_report_prints_tables(fakes, runs):
    said = fakes.says("report", str(runs[0]), COLUMNS="120")
    for part in ("forward: ms and", "no [red]memory[/]", "3 cases: 2 ok, 1 oom"):
        assert part in said
    assert not (runs[0] / "report").exists()


def test_a_summary_names_the_kernels_for_other_devices_in_one_line(fakes, tmp_path):
    far = [record(name, status="unsupported", message=f"{name} runs elsewhere") for name in ("fa3", "fa4", "fa3+fa4")]
    environment = {**ENVIRONMENT, "elsewhere": ["fa3", "fa4", "flex"]}
    said = fakes.says("report", str(write_run(tmp_path / "some", [record(), *far], environment)))
    assert said.splitlines()[-2:] == [
        "1 case: 1 ok",
        "3 further cases unsupported, of kernels that run on other devices only: fa3, fa4, fa3+fa4",
    ]
    assert "runs elsewhere" not in said
    alone = fakes.says("report", str(write_run(tmp_path / "none", far, environment)))
    assert "runs elsewhere" in alone, "nothing else is there"
    assert alone.splitlines()[-1] == "3 cases: 3 unsupported"


def test_report_writes_what_is_asked_for(fakes, runs, tmp_path):
    asked = [word for name in ("markdown", "csv", "png", "pdf") for word in ("--format", name)]
    said = fakes.says("report", str(runs[0] / "records.jsonl"), *asked)
    assert {file.name for file in (runs[0] / "report").iterdir()} == {
        "report.md",
        "records.csv",
        "report.png",
        "report.pdf",
    }
    assert said.count("wrote ") == 4
    found = json.loads(fakes.says("report", str(runs[0]), "--json", "--format", "csv", "--out", str(tmp_path / "x")))
    assert [each["kernel"] for each in found["records"]] == ["naive", "sdpa", "flex"]
    assert (found["environment"], len(found["files"])) == (ENVIRONMENT, 1)


def test_report_shows_a_view_of_several_runs(fakes, runs, tmp_path):
    ask = ("report", *map(str, runs[:2]), "--view")
    fakes.says(*ask, "environment", "--format", "markdown", "--out", str(tmp_path / "e.md"))
    assert "| python | 3.11.7 | all |" in (tmp_path / "e.md").read_text()
    shown = fakes.says(*ask, "over-baseline", "--where", "kernel=sdpa")
    assert shown == "The view over-baseline has nothing to show of 2 rows.\n"
    assert json.loads(fakes.says(*ask, "throughput", "--json"))["tables"][0]["rows"][0]["draws"] == 2
    assert fakes.says(*ask, "throughput").endswith("\nEach cell: TFLOP/s\n")
    fakes.says(*ask, "throughput", "--format", "csv", "--out", str(tmp_path / "folder"))
    assert (tmp_path / "folder" / "throughput.csv").read_text().startswith("table,mask,tiles,draws,naive,sdpa")


def test_report_writes_one_page_and_refuses_a_view_of_it(fakes, runs, tmp_path):
    page = tmp_path / "page.html"
    ran = fakes.longca("report", *map(str, runs[:2]), "--format", "html", "--out", str(page))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "sdpa" in page.read_text(encoding="utf-8")
    refused = fakes.longca("report", str(runs[0]), "--format", "html", "--view", "results", "--out", str(page))
    assert refused.returncode == 2
    assert "leave out --view" in refused.stderr
    nested = fakes.longca("report", str(runs[0]), "--where", "factors=x")
    assert nested.returncode == 2
    assert "factors has nested values; give another column, such as mask" in " ".join(nested.stderr.split())
    unknown = fakes.longca("report", str(runs[0]), "--where", "kernl=sdpa")
    assert "unknown column 'kernl'. Did you mean kernel" in unknown.stderr
    undrawn = fakes.longca("report", str(runs[0]), "--format", "svg", "--view", "environment")
    assert "the view environment cannot be drawn; draw one of results" in " ".join(undrawn.stderr.split())


def test_conditions_take_several_values_as_tables_print_them(fakes, runs, tmp_path):
    ask = ("report", *map(str, runs), "--json", "--where")
    found = json.loads(fakes.says(*ask, "run=a,b", "--where", "kernel=sdpa", "--where", "seqlen=1k"))["records"]
    assert [(each["kernel"], each["seqlen"]) for each in found] == [("sdpa", 1024)] * 2
    masks = [
        record(pattern="uniform_block_sparse", factors={"block": block, "kept": 0.1}, case=str(block))
        for block in (64, 128)
    ]
    name = "uniform_block_sparse 64, 10 %"
    commas = fakes.says("report", str(write_run(tmp_path / "m", masks)), "--json", "--where", f"mask={name}")
    assert len(json.loads(commas)["records"]) == 1
    assert len(json.loads(fakes.says(*ask, "run=[ab]"))["records"]) == 5
    assert "unknown run 'd'. Known: a, b, c" in fakes.refuses(*ask, "run=a,d")


def test_the_fastest_of_each_mask_is_one_table(fakes, tmp_path):
    records = [
        record("x", time=2e-3, pattern=p, mask_digest=p, direction=d)
        for p in ("full", "causal")
        for d in ("forward", "backward")
    ]
    records += [
        record("y", time=1e-3, pattern="full", mask_digest="full"),
        record("y", time=5e-3, mask_digest="causal"),
    ]
    out = tmp_path / "table.md"
    ask = ("report", str(write_run(tmp_path / "run", records)), "--view", "fastest", "--format", "markdown")
    fakes.says(*ask, "--out", str(out))
    title, *lines = filter(None, out.read_text().splitlines())
    assert title == "### TFLOP/s of the fastest kernel, 1 K tokens, 4:2 heads of 32"
    assert lines[0] == "| mask | forward | backward |"
    assert lines[2:] == ["| `full` | y 0.105 | – |", "| `causal` | x 0.0524 | – |"]


def test_report_says_that_no_chart_is_drawn(fakes, tmp_path):
    run = write_run(tmp_path / "failed", [record(status="oom")])
    ran = fakes.longca("report", str(run), "--format", "png")
    assert (ran.returncode, ran.stderr) == (0, "no png is drawn, because no case has a time\n")


def test_compare_says_what_is_shown(fakes, runs):
    a, b, c = map(str, runs)
    same = fakes.says("compare", a, a)
    assert "1.000" in same
    assert "No difference shown, over 2 cases" in "".join(same.splitlines()[-3:])
    slower = json.loads(fakes.says("compare", a, b, "--json"))
    assert slower["geometric_mean"]["value"] == pytest.approx(0.5)
    assert slower["geometric_mean"]["verdict"] == "A faster"
    assert [each["kernel"] for each in slower["only_a"]] == ["flex"]
    assert "python is 3.11.7 in A and 3.12.0 in B" in fakes.refuses("compare", a, c)
    assert fakes.longca("compare", a, c, "--force").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nowhere"], "nowhere does not exist"),
        (["compare", ".", "nowhere"], "has no records.jsonl"),
        (["report", "nowhere", "--format", "pgn"], "unknown format 'pgn'. Did you mean png?"),
        (["report", "nowhere", "--view", "troughput"], "unknown view 'troughput'. Did you mean throughput?"),
    ],
)
def test_a_mistake_is_one_line(fakes, arguments, message):
    assert message in fakes.refuses(*arguments)


@pytest.mark.parametrize("command", [["report"], ["report", "--format", "csv"], ["compare"]], ids=" ".join)
def test_neither_torch_nor_matplotlib_is_imported(fakes, runs, command):
    fakes.says(*command, *map(str, runs[: 2 if command == ["compare"] else 1]), without=("torch", "matplotlib"))
