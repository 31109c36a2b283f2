"""Requests that ask for too much: each is refused with one sentence, before anything is computed."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from longca import limits, masks, plugins
from longca.errors import MaskError, RequestError
from longca.masks.lengths import from_list
from longca_bench.cli.app import app
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite

DIGITS = "9" * 5000
SWEEP = {
    "patterns": '["causal"]',
    "seqlens": "[1024]",
    "heads": '["4:4"]',
    "head_dims": "[64]",
    "dtypes": '["float32"]',
    "kernels": '["naive"]',
}
THOUSAND = str(list(range(1, 1001)))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGCA_PLUGINS", "")
    # A registry that is opened in such a test lacks all plugins, and no later test may find it.
    monkeypatch.setattr(plugins, "_open", cache(plugins._open.__wrapped__))


def suite(head="name = 'own'\nversion = 1\n", **changed):
    sweep = "".join(f"{key} = {value}\n" for key, value in {**SWEEP, **changed}.items())
    return f"{head}[[sweep]]\n{sweep}"


def sparse(bytes_):
    """A file of some bytes that takes no room on the disk."""

    def write(path):
        with open(path, "wb") as file:
            file.truncate(bytes_)

    return write


def refusal(arguments):
    """The sentence with which a command refuses its arguments."""
    ran = CliRunner().invoke(app, arguments)
    said = str(ran.exception) if isinstance(ran.exception, RequestError) else " ".join(ran.stderr.split())
    assert isinstance(ran.exception, RequestError) or ran.exit_code == 2, ran.exception
    assert len(said) < 4000
    return said.replace("│ ", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 10_000 + "]" * 10_000, "is not TOML: "),
        (suite(seqlens=f"[{DIGITS}]"), "is not TOML: Exceeds the limit"),
        (suite(seqlens="[nan]"), "line 5: seqlens: should be a valid integer, not nan"),
        (suite(seqlens="[1073741824]"), f"less than or equal to {limits.MAX_TOKENS}, not 1073741824"),
        (suite(seqlens="[" + "-1," * 1000 + "]"), "; and 992 more"),
        (suite(kernels='["' + "a" * 100_000 + '"]'), "characters)…"),
        (suite(heads=f'["{DIGITS}:1"]'), "give query heads that are a multiple of KV heads"),
        (suite(head_dims="[10000000000]"), "give integers from 1 to 65536"),
        (suite(seqlens=THOUSAND, seeds=THOUSAND, head_dims=THOUSAND), "has 2000000000 cases; at most 100000"),
        (
            suite(
                patterns='["global_sliding_window"]',
                grid="{global_sliding_window = {window = " + THOUSAND + ", global_tokens = " + THOUSAND + "}}",
            ),
            "has 2000000 cases; at most 100000 are allowed. Narrow",
        ),
        (
            suite(
                factors="{causal_sliding_window = {window = 0x" + DIGITS + "}}", patterns='["causal_sliding_window"]'
            ),
            "window: a number of about 6021 digits does not fit into 64 bits",
        ),
        (suite(patterns='["causal_document"]', lengths=r'"a\u0000.txt"'), "no file of document lengths"),
    ],
)
def test_suites(text, said):
    Path("own.toml").write_text(text, "utf-8")
    assert said in refusal(["run", "own.toml", "--dry-run"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (f"run {'a' * 5000}.toml", "File name too long"),
        (f"run {'a' * 5000}", "unknown suite or mask pattern"),
        ("run causal --dry-run --seqlen 1073741824", f"less than or equal to {limits.MAX_TOKENS}"),
        ("run quick --dry-run --seqlen 1073741824", f"lengths from 1 to {limits.MAX_TOKENS} tokens are allowed"),
        ("run causal --timeout -1", "--timeout"),
        ("run causal --gpus 1000000000000000000", "--gpus"),
        ("verify --repeat 1000000000000000000", "--repeat"),
        ("verify --kernel sdpa --seqlen 1073741824", "every offer of their manifests; leave out --seqlen"),
        ("verify --kernel sdpa --seed 7 --seqlen-k 64", "leave out --seqlen-k and --seed"),
        ("verify --function m:f --mask causal --seqlen 1073741824", "lengths from 1 to 67108864 tokens"),
        (
            "verify --function m:f --mask causal --seqlen 67108864 --device cpu",
            "float64 attention on cpu takes at most",
        ),
        (f"list-capabilities --device cuda:9.{DIGITS}", "unknown device 'cuda:9.999"),
        ("show-mask causal --seqlen 1073741824", f"lengths from 1 to {limits.MAX_TOKENS} tokens are allowed"),
        ("show-mask uniform_block_sparse --kept nan", "'nan' is no share"),
        ("show-mask uniform_block_sparse --seqlen 67108864", "more than 4294967296"),
        ("show-mask variable_block_sparse --seqlen 67108864", "take larger blocks or fewer heads"),
        ("show-mask block_causal_document --block 1 --seqlen 67108864", "has 67108864 blocks; at most 1048576"),
        (f"show-mask causal_document --documents 1,{'9' * 30}", "lengths from 1 to"),
        ("recommend causal --seqlen 1073741824", f"lengths from 1 to {limits.MAX_TOKENS} tokens are allowed"),
        ("show-layout ring_p2p --gpus 1000000000000000007", "--gpus"),
        (f"report {'a' * 5000}", "does not exist; give the folder of a run"),
        (f"make-lengths {'a' * 5000}.jsonl --out o.csv", "File name too long"),
    ],
)
def test_options(arguments, said):
    assert said in refusal(arguments.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("quick --ab sdpa sdpa", "--ab sdpa sdpa compares a kernel with itself; name two kernels"),
        ("quick --ab sdpa naive --kernel sdpa", "--ab and --kernel do not go together; leave out one of them"),
        ("quick --ab sdpa naive --pairs", "--ab and --pairs do not go together"),
        ("causal --recommended --ab naive sdpa", "--recommended and --ab do not go together"),
        ("causal --recommended --function mine:attend", "--recommended and --function do not go together"),
        ("quick --recommended", "quick is a suite, which takes no --recommended; give a mask pattern"),
        ("causal --recommended --direction backward", "leave out --direction backward"),
        ("causal --recommended --kernel naive+sdpa", "give --kernel naive --kernel sdpa"),
        ("kept --kernel sdpa", "unknown kernel of suite kept 'sdpa'"),
        ("kept --mask causal", "unknown mask pattern of suite kept 'causal'"),
        ("prefix_lm_causal --prefix 65 --seqlen 64", "prefix is 65; it must be from 0 to 64"),
    ],
)
def test_runs(arguments, said):
    assert said in refusal(["run", *arguments.split(), "--device", "cpu", "--dry-run"])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("l.txt", DIGITS, "is not a document length"),
        ("l.txt", sparse(limits.MAX_LIST_BYTES + 1), "has more than 67108864 bytes"),
        ("l.csv", sparse(limits.MAX_HISTOGRAM_BYTES + 1), "has more than 16777216 bytes"),
        ("l.csv", f"lower,upper,weight\n1,{DIGITS},1\n", "is no bin; write lower, upper, weight"),
        ("l.json", f"[[1, 2, {'9' * 4000}]]", "is no bin; write lower, upper, weight"),
    ],
)
def test_files_of_lengths(name, content, said):
    content(name) if callable(content) else Path(name).write_text(content)
    assert said in refusal(["show-mask", "causal_document", "--lengths", name])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f'{{"text": {DIGITS}}}', "line 1: not JSON: Exceeds the limit"),
        ('{"' + "k" * 100_000 + '": 1}', "field 'text' is not among"),
    ],
)
def test_corpora(content, said):
    content("c.jsonl") if callable(content) else Path("c.jsonl").write_text(content)
    assert said in refusal(["make-lengths", "c.jsonl", "--out", "o.csv"])


def test_a_list_of_too_many_documents():
    Path("l.txt").write_text("1\n" * (limits.MAX_DOCUMENTS + 1))
    assert refusal(["show-mask", "causal_document", "--documents", "l.txt"]).endswith("1048576 lengths; give fewer")


def test_masks_of_too_many_parts():
    many = limits.MAX_DOCUMENTS + 1
    for make in (
        lambda: masks.build("causal_document", many, documents=iter(lambda: 1, 0)),
        lambda: masks.build("block_causal_document", many, documents=[many], block=1),
        lambda: masks.sample("block_causal_document", many, block=1),
        lambda: masks.sample("causal_document", 2 * many, lengths=from_list("ones", np.ones(8, np.int64))),
        lambda: masks.sample("variable_block_sparse", masks.MAX_SEQLEN),
    ):
        with pytest.raises(MaskError, match=r"at most 1048576|more than 4294967296"):
            make()


def test_large_requests_that_are_allowed():
    (case,) = expand(problem_suite("causal", seqlens=[2**20], directions=["forward"]), ["naive"])
    assert case.mask.area == 2**20 * (2**20 + 1) // 2
    seeds = problem_suite("causal", seqlens=[128], directions=["forward"], seeds=range(64), kernels=["naive"])
    assert len(expand(seeds, ["naive"])) == 64
    assert masks.sample("uniform_block_sparse", 2**17, block=2048, heads=64).heads == 64
