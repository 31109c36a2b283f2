import json

import pytest

from longca.bench.suite import builtin_suites, load_suite
from longca.errors import RequestError, UnknownNameError

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
    suite = load_suite("quick")
    assert suite.name == "quick"
    assert suite.sweep[0].patterns == ("*",)


def test_digest_changes_with_what_it_says(tmp_path):
    first = load_suite(write(tmp_path, GOOD))
    assert first.sweep[0].directions == ("forward", "backward")
    assert first.digest == load_suite(write(tmp_path, "# a comment\n" + GOOD)).digest
    assert first.digest != load_suite(write(tmp_path, GOOD.replace("64", "65"))).digest


def test_unknown_names_the_nearest():
    with pytest.raises(UnknownNameError, match="quick"):
        load_suite("quik")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[64]", '["64"]', r"sweep\.0\.seqlens\.0"),
        ("[64]", "[0]", r"sweep\.0\.seqlens\.0"),
        ("[64]", "[1000000000000]", r"sweep\.0\.seqlens\.0"),
        ("[64]", "[nan]", r"sweep\.0\.seqlens\.0"),
        ("[64]", "[]", r"sweep\.0\.seqlens"),
        ('"4:2"', '"4:3"', "multiple of KV heads"),
        ('"4:2"', '"4"', "64:8"),
        ('"causal"', '"cuasal"', "causal"),
        ('"float32"', '"float31"', r"sweep\.0\.dtypes\.0"),
        ("seqlens", "seqlenz", "seqlen"),
        ("version = 1", "version = 0", "version"),
        ("version = 1", "version = 1\nversion = 2", "not TOML"),
        ('name = "mine"', 'name = "../mine"', "name"),
    ],
)
def test_refused(tmp_path, old, new, message):
    with pytest.raises(RequestError, match=message):
        load_suite(write(tmp_path, GOOD.replace(old, new)))


def test_unreadable(tmp_path):
    with pytest.raises(RequestError, match=r"nowhere\.toml"):
        load_suite(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("[64]", '["64"]', 6),
        ('name = "mine"', 'name = "Mine!"', 2),
        ("seqlens = [64]\n", "", 4),
        ("heads = ", "heats = ", 4),
    ],
)
def test_the_line_is_named(tmp_path, old, new, line):
    with pytest.raises(RequestError, match=f"line {line}:"):
        load_suite(write(tmp_path, GOOD.replace(old, new)))


def contribute(fakes, distribution, package):
    folder = fakes.add(distribution, "", prelude=False)
    (folder / package / "suites").mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "suites" / "mine.toml").write_text(GOOD, "utf-8")
    entries = next(folder.glob("*.dist-info")) / "entry_points.txt"
    entries.write_text(f"[longca.suites]\nmine = {package}\n", "utf-8")


def test_a_distribution_contributes_a_suite(fakes):
    contribute(fakes, "giver", "giver_package")
    ran = fakes.longca("run", "mine", "--dry-run", "--kernel", "sdpa", "--json")
    assert ran.returncode == 0, ran.stderr
    assert [case["pattern"] for case in json.loads(ran.stdout)] == ["causal", "causal"]
    assert "mine" in fakes.longca("run", "mime").stderr


def test_two_that_contribute_one_name_are_both_named(fakes):
    contribute(fakes, "giver", "giver_package")
    contribute(fakes, "other", "other_package")
    ran = fakes.longca("run", "mine", "--dry-run")
    assert ran.returncode == 2
    assert "giver and other" in ran.stderr
