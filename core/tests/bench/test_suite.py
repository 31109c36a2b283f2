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
