import json
from pathlib import Path

import pytest

from longca.errors import RequestError, UnknownNameError
from longca_bench.suites.cases import absent
from longca_bench.suites.suite import builtin_suites, load_suite

GOOD = """
name = "mine"
version = 1
[[sweep]]
patterns = ["causal"]
seqlens = [64]
heads = ["4:2"]
head_dims = [32]
dtypes = ["float32"]
"""


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_builtin():
    assert "quick" in builtin_suites()
    assert load_suite("quick").sweep[0].seqlens == (4096,)


def test_digest_changes_with_what_it_says(tmp_path):
    first = load_suite(write(tmp_path, GOOD))
    assert first.sweep[0].directions == ("forward", "backward")
    assert first.digest == load_suite(write(tmp_path, "# a comment\n" + GOOD)).digest
    assert first.digest != load_suite(write(tmp_path, GOOD.replace("64", "65"))).digest


def test_a_grid_left_out_does_not_change_the_digest_that_records_have(tmp_path):
    assert load_suite(write(tmp_path, GOOD)).digest == "c1abd6b23bc86ff7"
    grid = GOOD + "[sweep.grid]\ncausal_sliding_window = { window = [1, 2] }\n"
    first = load_suite(write(tmp_path, grid)).digest
    assert first != load_suite(write(tmp_path, GOOD)).digest
    assert first != load_suite(write(tmp_path, grid.replace("[1, 2]", "[1, 3]"))).digest


def test_every_combination_of_a_grid(tmp_path):
    text = GOOD + (
        "[sweep.factors]\nuniform_block_sparse = { seed = 3 }\n"
        "[sweep.grid]\nuniform_block_sparse = { block = [16, 64], kept = [0.2, 0.5] }\n"
        "variable_block_sparse = { boundaries = [[0, 64], [0, 9, 64]] }\n"
    )
    (sweep,) = load_suite(write(tmp_path, text)).sweep
    assert sweep.factor_sets("causal") == [{}]
    assert sweep.factor_sets("uniform_block_sparse") == [
        {"seed": 3, "block": block, "kept": kept} for block in (16, 64) for kept in (0.2, 0.5)
    ]
    assert sweep.factor_sets("variable_block_sparse") == [{"boundaries": [0, 64]}, {"boundaries": [0, 9, 64]}]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("full_sliding_window = { window = [] }", r"grid\.full_sliding_window\.window"),
        ("full_sliding_window = { window = 1 }", "valid list"),
        ("causal_sliding_window = { window = [1] }", "both factors and grid"),
    ],
)
def test_grids_that_say_nothing_or_twice_are_refused(tmp_path, grid, message):
    given = "[sweep.factors]\ncausal_sliding_window = { window = 9 }\n[sweep.grid]\n"
    with pytest.raises(RequestError, match=message):
        load_suite(write(tmp_path, GOOD + given + grid))


def test_unknown_names_the_nearest():
    with pytest.raises(UnknownNameError, match="quick"):
        load_suite("quik")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[64]", '["64x"]', "seqlens: '64x' is no number of tokens"),
        ("[64]", "[0]", "seqlens: should be greater than or equal to 1, not 0$"),
        ("[64]", "[]", "line 6: seqlens is empty$"),
        ('"4:2"', '"4:3"', "multiple of KV heads"),
        ('"causal"', '"cuasal"', "causal"),
        ('"float32"', '"float31"', "line 9: dtypes: unknown dtype 'float31'. Did you mean float32"),
        ("seqlens", "seqlenz", "line 6: seqlenz is no key that is known here$"),
        ("version = 1", 'version = "x"\nseed = 1', "line 3: version: .*; line 4: seed is no key"),
        ("version = 1", "version = 1\nversion = 2", "not TOML"),
        ("version = 1", "", "version is missing$"),
        (GOOD[GOOD.index("[[sweep]]") :], "", "sweep is missing$"),
        ('name = "mine"', 'name = "../mine"', "name"),
        ("[[sweep]]", '[distributions]\nfar = "rm -rf"\n[[sweep]]', r"distributions\.far"),
    ],
)
def test_refused(tmp_path, old, new, message):
    with pytest.raises(RequestError, match=message):
        load_suite(write(tmp_path, GOOD.replace(old, new)))


def test_values_are_read_as_people_write_them(tmp_path):
    short = (
        ("[64]", '["1k"]'),
        ('"float32"', '"fp32"'),
        ('"4:2"', '"4"'),
        ("version = 1", 'version = 1\nmemory = "16GiB"'),
    )
    text = GOOD
    for old, new in short:
        text = text.replace(old, new)
    found = load_suite(write(tmp_path, text))
    (sweep,) = found.sweep
    assert (sweep.seqlens, sweep.dtypes, sweep.heads, found.memory) == ((1024,), ("float32",), ("4:4",), 16 * 2**30)
    assert found.digest == load_suite(write(tmp_path, GOOD.replace("[64]", "[1024]").replace("4:2", "4:4"))).digest


def test_unreadable(tmp_path):
    with pytest.raises(RequestError, match=r"nowhere\.toml"):
        load_suite(str(tmp_path / "nowhere.toml"))


def contribute(fakes, distribution, package):
    folder = fakes.add(distribution, "", prelude=False)
    (folder / package / "suites").mkdir(parents=True)
    (folder / package / "__init__.py").write_text("")
    (folder / package / "suites" / "mine.toml").write_text(GOOD, "utf-8")
    entries = next(folder.glob("*.dist-info")) / "entry_points.txt"
    entries.write_text(f"[longca.suites]\nmine = {package}\n", "utf-8")


def test_a_distribution_contributes_a_suite(fakes):
    contribute(fakes, "giver", "giver_package")
    ran = fakes.longca("run", "mine", "--dry-run", "--kernel", "sdpa", "--json")
    assert ran.returncode == 0, ran.stderr
    assert [case["pattern"] for case in json.loads(ran.stdout)] == ["causal", "causal"]
    contribute(fakes, "other", "other_package")
    assert "giver and other" in fakes.refuses("run", "mine", "--dry-run")


def test_kernels_that_are_not_installed_are_left_out_and_named(fakes, tmp_path):
    said = GOOD.replace("heads = ", 'kernels = ["far", "sdpa"]\nheads = ')
    suite = write(tmp_path, said.replace("[[sweep]]", '[distributions]\nfar = "fake0"\n[[sweep]]'))
    ran = fakes.longca("run", suite, "--dry-run", "--json")
    assert ran.returncode == 0, ran.stderr
    assert {case["kernel"] for case in json.loads(ran.stdout)} == {"sdpa"}
    assert ran.stderr.startswith("far is left out: fake0 is not installed. Install it: pip install fake0")
    here = load_suite(write(tmp_path, Path(suite).read_text("utf-8").replace("fake0", "longca-core")))
    assert "longca-core is installed, but does not provide it here" in absent(here, ["sdpa"])["far"]
