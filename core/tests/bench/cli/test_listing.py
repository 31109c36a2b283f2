"""The listing commands print for people at any width, as JSON, and for those who mistype."""

import json
import re
import subprocess
import sys

import pytest

from longca import masks
from longca_bench.measuring.repeatability import FEWEST
from longca_bench.reports.words import brief_percent

from ...fake_plugins import FakePlugins

KERNELS = """
GPU = {"cpu": False, "verified_on": ">=8.0", "dtypes": ("bfloat16", "float16")}
HOPPER = {**GPU, "verified_on": "==9.0"}

@hookimpl
def provide_kernel():
    return [
        kernel("far", offer("row_intervals", backward="external", **GPU), family="gpu"),
        kernel("near", offer("full", **GPU), offer("full", **HOPPER, backward="own"), family="gpu"),
        kernel("lacking", offer("causal", backward="own"), family="cpu", requires=("not-there>=2",)),
        kernel("single", offer("causal", dtypes=("float32",), gqa=False, head_dims=(64,)), family="cpu"),
    ]

@hookimpl
def provide_cp_strategy():
    return StrategyManifest(name="rounds", title="Rounds", upstream="-", license="MIT", axes=("outer", "inner"),
                            placements=("contiguous", "zigzag_document"), layout="not_there:layout",
                            implementation="not_there:Rounds")
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    made = FakePlugins(tmp_path_factory.mktemp("listing"))
    made.add("some-kernels", KERNELS)
    made.longca("plugins")
    return made


def capabilities(fakes, *arguments, **env):
    return fakes.says("list-capabilities", *arguments, LONGCA_PLUGINS="some-kernels", **env)


def row(text, kernel):
    return next(line.split()[1:] for line in text.splitlines() if line.split()[:1] == [kernel])


def cells(fakes, *arguments):
    listed = json.loads(capabilities(fakes, "--json", *arguments))
    return {(cell["kernel"], cell["pattern"], cell["direction"]): cell for cell in listed["cells"]}


def test_the_matrix_shows_what_runs_here(fakes):
    text = capabilities(fakes, "--device", "cpu")
    none = ["·"]
    assert row(text, "naive") == ["FB"] * 14
    assert row(text, "far") == ["fb"] * 12 + none * 2
    assert row(text, "near") == ["fb"] + none * 13
    assert row(text, "lacking") == [*none, "fb+", *none * 12]
    assert row(text, "single") == [*none, "F", *none * 12]
    assert "pip install 'not-there>=2'" in text
    assert "takes float32, not bfloat16" in text
    assert "takes MHA, not GQA" in text
    assert "takes head dimension 64, not 128" in text


def test_the_matrix_follows_the_options(fakes):
    assert row(capabilities(fakes, "--device", "cuda:8.0"), "near")[0] == "Fb"
    assert row(capabilities(fakes, "--device", "h200"), "near")[0] == "FB"
    assert row(capabilities(fakes, "--device", "cpu", "--heads", "64:8"), "single")[1] == "x"
    assert row(capabilities(fakes, "--device", "cpu", "--head-dim", "128"), "single")[1] == "x"
    narrow = ("--mha", "--dtype", "fp32", "--head-dim", "64")
    assert row(capabilities(fakes, "--device", "cpu", *narrow), "single")[1] == "F"
    assert row(capabilities(fakes, "--direction", "backward", "--mask", "full"), "naive") == ["B"]
    chosen = capabilities(fakes, "--kernel", "naive", "--mask", "causal", "--mask", "full")
    assert row(chosen, "naive") == ["FB", "FB"]
    assert "sdpa" not in chosen


def test_strategies_are_listed_with_their_axes_and_placements(fakes):
    line = "rounds (outer, inner): contiguous, zigzag_document"
    assert line in capabilities(fakes, "--device", "cpu").splitlines()
    assert "rounds" not in capabilities(fakes, "--kernel", "naive")
    listed = json.loads(capabilities(fakes, "--json"))["strategies"]
    assert list(listed) == ["rounds"]
    assert listed["rounds"]["distribution"] == "some-kernels"
    assert listed["rounds"]["axes"] == ["outer", "inner"]
    assert listed["rounds"]["placements"] == ["contiguous", "zigzag_document"]


def test_a_kernel_of_two_lines_has_its_masks_there(fakes):
    kernels = """
@hookimpl
def provide_kernel():
    new = offer("full", cpu=False, verified_on="==9.0", expected_on=">=10.0")
    return [kernel("two", new, offer("causal", cpu=False, verified_on="==9.0"), offer("window", cpu=False,
                                                                                       verified_on="==9.0"))]
"""
    fakes.add("two-kinds", kernels)
    text = fakes.says("list-capabilities", "--kernel", "two", "--device", "cpu", LONGCA_PLUGINS="two-kinds")
    said = " ".join(text.split())
    assert (
        "two (full) runs on CUDA devices of compute capability ==9.0 (verified) or >=10.0 (expected); this device is a "
        "CPU. two (other masks) runs on CUDA devices of compute capability ==9.0; this device is a CPU."
    ) in said


@pytest.mark.parametrize("width", [40, 160])
def test_nothing_is_wider_than_the_terminal_or_cut_short(fakes, width):
    text = capabilities(fakes, COLUMNS=str(width))
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    heads = text.split()
    for pattern in masks.PATTERNS:
        assert pattern in heads or all(word in heads for word in pattern.split("_"))


def test_json_has_every_cell(fakes):
    listed = cells(fakes, "--device", "cpu")
    assert len(listed) == 6 * 14 * 2
    assert listed["naive", "causal", "backward"]["status"] == "here"
    assert listed["naive", "causal", "backward"]["form"] == "row_intervals"
    assert listed["far", "causal", "forward"]["status"] == "device"
    assert listed["lacking", "causal", "forward"]["status"] == "package"
    assert listed["lacking", "causal", "forward"]["reasons"][0]["code"] == "package"
    single = listed["single", "causal", "forward"]
    assert (single["dtype"], single["heads_q"], single["heads_kv"], single["head_dim"]) == ("float32", 8, 8, 64)
    assert listed["single", "causal", "backward"]["status"] == "none"
    asked = cells(fakes, "--device", "cpu", "--dtype", "bfloat16")
    assert asked["single", "causal", "forward"]["status"] == "options"


def test_why_explains_a_cell(fakes):
    text = capabilities(fakes, "--device", "cuda:8.0", "--why", "near", "full")
    assert "form full, whose metadata grows as O(1)" in text
    assert "near needs compute capability ==9.0; this device has 8.0." in text
    assert "instead: naive" in text
    assert "not offered" in capabilities(fakes, "--why", "near", "shared_question")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "nive"], "unknown kernel 'nive'. Did you mean naive or "),
        (["--device", "cuda"], "unknown device 'cuda'. Known are v100, a100, "),
        (["--dtype", "bfloat"], "unknown dtype 'bfloat'. Did you mean bfloat16 or "),
        (["--head-dim", "0"], "head_dim is 0; give an integer from 1 to 65536"),
        (["--why", "naive", "ful"], "unknown mask pattern 'ful'. Did you mean full?"),
        (["--kernel", "\x1b[31m[red]x\nerror: y"], r"unknown kernel '\x1b[31m[red]x\nerror: y'. Known:"),
    ],
)
def test_a_mistake_is_one_line(fakes, arguments, message):
    assert fakes.refuses("list-capabilities", *arguments).startswith(f"error: {message}")


@pytest.mark.parametrize("command", [("run", "causal", "--seqlen", "64", "--dry-run"), ("list-capabilities",)])
def test_v_may_have_a_head_dim_of_its_own(fakes, command):
    ran = fakes.longca(*command, "--head-dim", "192:128")
    assert ran.returncode == 0
    assert "192:128" in ran.stdout
    assert "give an integer" in fakes.refuses(*command, "--head-dim", "192:")


@pytest.mark.parametrize("arguments", [["list-capabilities", "--bogus"], ["[red]x"]])
def test_usage_errors_exit_with_2(fakes, arguments):
    ran = fakes.longca(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Traceback" not in ran.stderr
    assert "red" not in arguments[0] or "[red]x" in ran.stderr


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        ("recommend causal --seqlen 8192 --heads 32:8 --device h200", ""),
        ("list-capabilities", ""),
        ("show-mask causal_document --seqlen 4096", ""),
        ("verify --kernel sdpa", "torch"),
        ("show-mask causal --seqlen 64 --out mask.png", "matplotlib"),
    ],
)
def test_listings_need_neither_torch_nor_pandas(command, lacks, tmp_path):
    absent = "import sys; sys.modules.update(dict.fromkeys(('torch', 'pandas', 'matplotlib', 'altair')));"
    code = f"{absent} from longca_bench.cli import main; sys.argv[1:] = {command.split()}; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert ran.returncode == bool(lacks), ran.stderr
    assert not lacks or re.match(rf"error: this command needs {lacks}, .* pip install .*core\[", ran.stderr)


def test_doctor_says_what_is_here_and_what_is_missing(fakes):
    found = json.loads(fakes.longca("doctor", "--json", "--no-timing", CUDA_VISIBLE_DEVICES="").stdout)
    assert {"machine", "software", "plugins", "kernels"} == set(found)
    named = {finding["name"]: finding for findings in found.values() for finding in findings}
    assert named["Python"]["found"].startswith(sys.version.split()[0])
    assert named["torch"]["ok"] is True
    assert named["naive"]["found"] == "runs 14 of 14 masks here, 14 of them backward too"
    assert named["lacking"]["ok"] is False
    assert named["lacking"]["advice"].startswith("Install it: pip install 'not-there>=2'")
    assert named["far"]["ok"] is None
    assert "pip install 'not-there>=2'" in " ".join(fakes.longca("doctor", "--no-timing").stdout.split())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_doctor_times_the_same_work_twice(fakes):
    ran = fakes.longca("doctor", "--json", CUDA_VISIBLE_DEVICES="")
    found = json.loads(ran.stdout)
    assert [fact["name"] for fact in found["timing"]] == ["frequency", "CPU timing", "CPU noise"]
    assert [(fact["name"], fact["found"][:6]) for fact in found["peers"]] == [("peer access", "no GPU")]
    assert found["peer_access"] is None
    cpu = found["repeatability"]["cpu"]
    assert found["timing"][1]["found"].startswith(f"results must differ by more than {brief_percent(cpu['needed'])}")
    assert all(len(run) >= FEWEST for run in cpu["medians"])
    assert [each["other_cores"] is None or each["other_cores"] >= 0 for each in cpu["noise"]] == [True, True]
    assert "--no-timing" in ran.stderr


def test_doctor_says_why_there_is_no_timing(fakes):
    fakes.folders[0].joinpath("torch.py").write_text("raise ImportError('this torch is broken')", "utf-8")
    try:
        ran = fakes.longca("doctor", "--json")
    finally:
        fakes.folders[0].joinpath("torch.py").unlink()
    fact = json.loads(ran.stdout)["timing"][-1]
    assert (ran.returncode, fact["ok"]) == (0, False)
    assert fact["found"].endswith("code 1, and its last words are: ImportError: this torch is broken")


def test_a_terminal_that_knows_ascii_alone_gets_ascii(fakes):
    assert fakes.says("list-capabilities", PYTHONIOENCODING="ascii").isascii()
    assert fakes.says("plugins", PYTHONIOENCODING="ascii").isascii()
    assert "✓" in fakes.longca("plugins", PYTHONIOENCODING="utf-8").stdout


def test_a_reader_who_has_seen_enough_is_not_told_off(fakes):
    line = f"{sys.executable} -m longca list-capabilities --json | head -c 1"
    env = {**fakes.env, "PYTHONPATH": str(fakes.folders[0])}
    ran = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("{", "")
