"""`longca recommend`, as it is called: what it prints at any width, its JSON, and what it says to mistakes."""

import json
import re
import shutil
from pathlib import Path

import pytest

from ...fake_plugins import STRATEGY, FakePlugins

QUICK = Path(__file__).parents[4] / "results" / "cpu" / "quick"
LONG = ("causal", "--seqlen", "32768")

#: What the JSON of a choice has, and of an answer.
CHOICE = {
    "forward", "backward", "strategy", "placement", "mesh", "seconds", "tflops", "bytes_per_rank", "fits", "evidence",
    "call", "installed", "install", "lacks", "unverified",
}  # fmt: skip
ANSWER = {"problem", "device", "ranks", "choices", "unmeasured", "refused", "notes", "why"}


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    return FakePlugins(tmp_path_factory.mktemp("recommend"))


@pytest.fixture(scope="module")
def ask(fakes):
    """Asks for an H200, unless said otherwise, and gives what is printed."""
    return lambda *arguments, device="h200": fakes.says("recommend", *arguments, "--device", device)


@pytest.fixture(scope="module")
def answer(ask):
    return lambda *arguments, **more: json.loads(ask(*arguments, "--json", **more))


@pytest.fixture(scope="module")
def causal(answer):
    return answer(*LONG)


@pytest.fixture(scope="module")
def printed(ask):
    return ask(*LONG)


def test_the_json_has_exactly_what_is_promised(causal):
    assert set(causal) == ANSWER
    assert (causal["ranks"], causal["device"]) == (1, "NVIDIA H200 (compute capability 9.0)")
    assert causal["choices"]
    for choice in causal["choices"]:
        assert set(choice) == CHOICE
        assert {"forward", "backward", "total", "low", "high"} <= set(choice["seconds"])
        assert set(choice["evidence"]) == {"records", "nearest", "extrapolates", "outside", "versions", "notes"}
        assert (choice["strategy"], choice["placement"], choice["mesh"]) == (None, None, None)
        assert choice["installed"] == (choice["install"] is None)
        assert choice["evidence"]["extrapolates"] == bool(choice["evidence"]["outside"])
        assert choice["evidence"]["records"] > 0
    for refused in causal["refused"]:
        assert set(refused) == {"kernel", "strategy", "reasons", "advice"}
        assert refused["reasons"]
    for one in causal["unmeasured"]:
        assert set(one) == {"kernel", "strategy", "why", "installed", "install", "lacks", "unverified"}


def test_the_problem_is_said_back(answer):
    options = ("--documents", "1000,3000", "--heads", "64:8", "--head-dim", "64", "--dtype", "fp16", "--forward")
    problem = answer("causal_document", *options, "--memory", "80GB")["problem"]
    assert problem.pop("text").splitlines() == [
        "causal_document of 4,000 tokens, documents of 1,000, 3,000",
        "64:8 heads of 64, float16, forward, on NVIDIA H200",
    ]
    assert problem.pop("density") == pytest.approx((1000 * 1001 + 3000 * 3001) / 2 / 4000**2)
    assert problem == {
        "mask": "causal_document", "seqlen": 4000, "factors": {"documents": [1000, 3000]}, "heads_q": 64,
        "heads_kv": 8, "head_dim": 64, "head_dim_v": 64, "dtype": "float16", "softmax_scale": 1 / 8, "softcap": None,
        "sinks": False, "direction": "forward", "per_node": 1, "network": None, "memory": 80 * 10**9,
    }  # fmt: skip


def test_the_quickest_is_named_first_and_ties_are_called_ties(causal, printed):
    best, *others = causal["choices"]
    first = printed.splitlines()[3]
    assert first.startswith(f"{best['forward']} is predicted fastest: ")
    tied = [choice["forward"] for choice in others if choice["seconds"]["total"] <= best["seconds"]["high"]]
    assert tied
    assert f"Within its interval, and so tied: {', '.join(tied)}." in first
    assert printed.splitlines()[-1] == f"    {best['call']}"


@pytest.mark.parametrize("columns", ["80", "40"])
def test_a_narrow_terminal_shows_every_choice(fakes, causal, columns):
    text = fakes.says("recommend", *LONG, "--device", "h200", COLUMNS=columns)
    assert "…" not in text
    assert all(f"\n{choice['forward']}" in text for choice in causal["choices"][:8])
    table = text[text.index("\nkernel ") :].lstrip().split("\n\n")[0].splitlines()
    assert len(table) > 8
    assert max(map(len, table)) <= int(columns)


def test_everything_is_listed_where_all_is_asked_for(answer, ask):
    options = ("full_document", "--documents", "9000,7000", "--heads", "8:8")
    found = answer(*options)
    assert len(found["refused"]) > 8 or len(found["choices"]) > 8
    short, everything = ask(*options), ask(*options, "--all")
    assert "--all lists them" in short
    assert "--all lists them" not in everything
    assert all(refused["kernel"] in everything for refused in found["refused"])
    assert sum(f"\n{c['forward']}" in everything for c in found["choices"]) == len(found["choices"])


def test_why_says_where_a_kernel_stands(ask, causal):
    text = ask(*LONG, "--why", "sdpa")
    place = [choice["forward"] for choice in causal["choices"]].index("sdpa") + 1
    assert text.partition("\n\n")[2].startswith(f"sdpa: place {place} of {len(causal['choices'])}, ")
    assert "the most similar is results/h200/" in text
    assert "vsa: takes block_sparse" in ask(*LONG, "--why", "vsa")


def test_the_forward_alone_has_no_backward_and_no_pairs(answer, ask):
    found = answer(*LONG, "--forward")
    assert found["problem"]["direction"] == "forward"
    for choice in found["choices"]:
        assert (choice["backward"], choice["seconds"]["backward"]) == (None, None)
        assert choice["seconds"]["total"] == choice["seconds"]["forward"]
    assert " for forward (" in ask(*LONG, "--forward")


def test_a_device_without_evidence_lists_what_is_valid_without_a_rank(answer, ask):
    found = answer(*LONG, device="b200")
    assert found["choices"] == []
    text = ask(*LONG, device="b200").partition("\n\n")[2]
    assert text.startswith("Valid on NVIDIA B200 (compute capability 10.0), without evidence of how fast, and so not")
    names = [one["kernel"] for one in found["unmeasured"]]
    assert [line.strip() for line in text.splitlines()[1 : len(names) + 1]] == names


def test_memory_below_the_tensors_says_what_would_fit(answer, ask):
    found = answer("causal", "--seqlen", "1048576", "--memory", "2GB")
    assert found["choices"] == []
    (refused,) = found["refused"]
    assert (refused["kernel"], refused["strategy"]) == (None, None)
    assert refused["advice"].startswith("Take up to ")
    text = ask("causal", "--seqlen", "1048576", "--memory", "2GB").partition("\n\n")[2]
    assert text.startswith("Nothing fits NVIDIA H200 (compute capability 9.0).\n")
    assert refused["advice"] in text


def test_factors_that_decide_the_answer_are_asked_for_with_an_example(fakes, ask):
    said = fakes.refuses("recommend", "prefix_lm_document", "--seqlen", "3000", "--prefix", "99", "--device", "h200")
    assert "depends on --documents. For example: " in said
    example = said.partition("For example: longca recommend ")[2].partition(". ")[0]
    assert ask(*example.split()).startswith(
        "prefix_lm_document of 3,000 tokens, documents of 2,000, 1,000, prefix 99\n"
    )
    drawn = ask("prefix_lm_document", "--seqlen", "3000", "--seed", "0")
    assert "(not given: documents, prefix; drawn with seed 0 from pile)\n" in drawn


def test_without_a_gpu_the_answer_is_for_the_gpu_with_the_most_measurements(fakes):
    text = fakes.says("recommend", *LONG, CUDA_VISIBLE_DEVICES="")
    assert "on NVIDIA H200\nNo GPU here; add --device h200." in text
    assert "is predicted fastest" in text


def test_the_link_that_is_assumed_is_said(on_two):
    def problem(*options):
        return json.loads(on_two("--json", *options))["problem"]

    assert re.fullmatch(r"linked at \d+ to \d+ GB/s \(measured\)", problem()["network"])
    assert problem("--network", "pcie5")["text"].endswith("on 2 × NVIDIA H200, linked at 50 GB/s (pcie5)")
    hosts = problem("--network", "pcie4+400Gb", "--per-node", "1")
    assert hosts["network"] == "50 GB/s between 2 hosts"
    assert any(
        "link between hosts is not used" in note for note in json.loads(on_two("--json", "--network", "400Gb"))["notes"]
    )


def test_masks_per_head_are_drawn_for_the_kv_heads(answer):
    found = answer("uniform_block_sparse", "--seqlen", "8192", "--block", "64", "--kept", "0.2", "--heads", "16:4")
    assert found["problem"]["factors"]["heads"] == 4
    assert found["choices"]


def test_a_plugin_that_is_left_out_has_no_kernel_here(fakes):
    ran = fakes.longca("recommend", *LONG, "--device", "h200", "--json", LONGCA_PLUGINS="")
    names = {choice["forward"] for choice in json.loads(ran.stdout)["choices"]}
    assert names <= {"naive", "online", "sdpa"}
    assert any(
        "evidence knows kernels that no plugin provides here" in note for note in json.loads(ran.stdout)["notes"]
    )


@pytest.fixture
def own_run(tmp_path):
    """A run on a CPU, of masks that are drawn as they were when it was made."""
    folder = shutil.copytree(QUICK, tmp_path / "a run")
    lines = (folder / "records.jsonl").read_text("utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["pattern"] in ("full", "causal")]
    (folder / "records.jsonl").write_text("\n".join(kept), "utf-8")
    return folder


def test_a_run_of_ones_own_is_evidence(answer, own_run):
    device = json.loads((own_run / "environment.json").read_text("utf-8"))["device"]["name"]
    options = ("full", "--seqlen", "1024", "--heads", "4:2", "--head-dim", "64", "--dtype", "float32")
    found = answer(*options, "--records", str(own_run), device=device)
    assert {"naive", "sdpa"} <= {choice["forward"] for choice in found["choices"]}
    assert all(str(own_run) in choice["evidence"]["nearest"] for choice in found["choices"])


@pytest.mark.parametrize("median", ["NaN", "-0.5", "0", "1e-12", '"quick"'])
def test_records_that_were_edited_are_refused_by_their_line(fakes, own_run, median):
    lines = (own_run / "records.jsonl").read_text("utf-8").splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "median": "HERE"}).replace('"HERE"', median)
    (own_run / "records.jsonl").write_text("\n".join(lines), "utf-8")
    said = fakes.refuses("recommend", *LONG, "--records", str(own_run))
    assert said.startswith(f"error: {own_run / 'records.jsonl'}, line 3: ")
    assert said.endswith(". Correct or remove the line\n")


def test_a_model_has_a_row_for_each_kind_of_its_layers(answer, ask):
    found = answer(*LONG, "--model", "gemma-3-27b")
    assert [(layer["count"], layer["window"]) for layer in found["layers"]] == [(52, 1024), (10, None)]
    total = sum(layer["count"] * layer["choice"]["seconds"]["total"] for layer in found["layers"])
    assert found["seconds"]["total"] == pytest.approx(total)
    assert all(set(layer["recommendation"]) == ANSWER for layer in found["layers"])
    text = ask(*LONG, "--model", "gemma-3-27b")
    assert text.startswith(f"{found['text']}\n\nThe attention of a step takes ")
    for layer, mask in zip(found["layers"], ("window of 1,024", "whole mask"), strict=True):
        row = next(line for line in text.splitlines() if line.split()[:1] == [str(layer["count"])])
        assert f" {mask} " in row
        assert f" {layer['choice']['forward']}" in row
    why = ask(*LONG, "--model", "gemma-3-27b", "--why", "sdpa")
    assert why.count("32:16 heads of 128, bfloat16, training, on NVIDIA H200") == 2


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "h2000"], "unknown device 'h2000'. Known are v100, a100, "),
        (["--dtype", "float8_e4m3fn"], "LongCA has no attention in "),
        (["--dtype", "float7"], "unknown dtype 'float7'. "),
        (["--heads", "7:3"], "heads are '7:3'; give query heads that are a multiple of KV heads, such as 64:8"),
        (["--heads", "text"], "heads are 'text'; give query heads that are a multiple of KV heads, such as 64:8"),
        (["--head-dim", "0"], "head_dim is 0"),
        (["--memory", "lots"], "'lots' is no size of memory. Give a number and a unit, such as 80GB"),
        (["--kernel", "nobody"], "unknown kernel 'nobody'"),
        (["--strategy", "nobody"], "unknown strategy 'nobody'"),
        (["--why", "spda"], "unknown kernel or strategy 'spda'. Did you mean sdpa"),
        (["--records", "nowhere"], "nowhere is no folder of a run"),
        (["--seqlen", "0"], "seqlen is 0"),
        (["--window", "5"], "causal takes no factor 'window'"),
        (["--gpus", "2", "--network", "fast"], "'fast' "),
        (["--model", "gpt-oss-21b"], "unknown model 'gpt-oss-21b'. Did you mean gpt-oss-20b"),
        (["--model", "nowhere/config.json"], "cannot read nowhere/config.json"),
        (["--model", "llama-3.1-8b", "--head-dim", "128"], "--model llama-3.1-8b decides on --head-dim too"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_told_in_one_line(fakes, options, said):
    assert fakes.refuses("recommend", "causal", "--device", "h200", *options).startswith(f"error: {said}")


@pytest.mark.parametrize("options", [["--gpus", "20000"], ["--gpus", "2", "--per-node", "20000"]])
def test_numbers_of_gpus_have_a_limit(fakes, options):
    ran = fakes.longca("recommend", "causal", "--device", "h200", *options)
    assert ran.returncode == 2
    assert f"Invalid value for '{options[-2]}'" in ran.stderr
    assert "16384" in ran.stderr


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """Asks of 2 devices, where one strategy is installed, which states no schedule."""
    made = FakePlugins(tmp_path_factory.mktemp("a strategy"))
    made.env["LONGCA_PLUGINS"] = "rounds"
    made.add("rounds", STRATEGY)
    problem = ("recommend", "causal", "--seqlen", "64", "--heads", "4:4", "--device", "h200", "--gpus", "2")
    return lambda *options: made.says(*problem, *options)


def test_a_strategy_that_does_not_say_what_it_moves_is_not_ranked(on_two):
    found = json.loads(on_two("--json"))
    assert found["choices"] == []
    (one,) = found["unmeasured"]
    assert (one["strategy"], one["why"]) == ("round", "round states no schedule, so its time is not predicted")
    assert [(refused["strategy"], refused["reasons"]) for refused in found["refused"]] == [
        ("round placed nowhere", ["too many"])
    ]
    text = on_two().partition("\n\n")[2]
    assert text.startswith("Nothing can be ranked on 2 × NVIDIA H200 (compute capability 9.0).\n")
    assert "\nNot ranked: round: round states no schedule, so its time is not predicted.\n" in text


def test_why_tells_what_is_refused_of_a_strategy(on_two):
    text = on_two("--why", "round")
    assert "round states no schedule, so its time is not predicted" in text
    assert "round placed nowhere: too many." in text


def test_neither_torch_nor_matplotlib_is_imported(fakes):
    said = fakes.says("recommend", *LONG, "--device", "h200", without=("torch", "triton", "matplotlib"))
    assert "is predicted fastest" in said


EXPECTED = """
@hookimpl
def provide_kernel():
    few = {"verified_on": "==9.0", "expected_on": ">=10.0", "backward": "external", "cpu": False}
    return kernel("fresh", offer("causal", **few))
"""


def test_unverified_kernels_are_listed_if_asked_for_and_marked(tmp_path):
    fakes = FakePlugins(tmp_path)
    fakes.add("fresh", EXPECTED)
    fakes.env["LONGCA_PLUGINS"] = "fresh"
    asked = ("recommend", *LONG, "--device", "b200")
    assert "fresh: should run on this device, and nobody verified it there" in " ".join(fakes.says(*asked).split())
    printed = fakes.says(*asked, "--unverified")
    assert "  fresh (unverified)\n" in printed
    assert "  naive\n" in printed
    assert "Run `longca verify --unverified --kernel NAME`" in " ".join(printed.split())
    found = json.loads(fakes.says(*asked, "--unverified", "--json"))["unmeasured"]
    assert {one["kernel"]: one["unverified"] for one in found}["fresh"] is True
    assert {one["kernel"]: one["unverified"] for one in found}["naive"] is False
    on_h200 = fakes.says("recommend", *LONG, "--device", "h200", "--unverified")
    assert "unverified" not in on_h200, "it is verified there"
