"""`longca run`, as it is called: what it refuses, and what it says beforehand and as it goes."""

import pytest

BRACKETS = """
@hookimpl
def provide_kernel():
    return [kernel("bracketed", install="pip install 'some[extra]'", requires=("not-there>=2",))]
"""


@pytest.fixture
def fakes(fakes, tmp_path):
    fakes.env |= {"LONGCA_PLUGINS": "", "LONGCA_HISTORY": str(tmp_path / "history.jsonl")}
    return fakes


def test_install_lines_can_be_pasted(fakes):
    fakes.add("some-kernels", BRACKETS)
    narrow = ("--mask", "full", "--seqlen", "64", "--direction", "forward")
    ran = fakes.longca("run", "quick", "--kernel", "bracketed", *narrow, "--dry-run", LONGCA_PLUGINS="some-kernels")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith("pip install 'some[extra]'\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quick", "--ab", "sdpa", "sdpa"], "--ab sdpa sdpa compares a kernel with itself; name two kernels"),
        (["quick", "--ab", "sdpa", "naive", "--kernel", "sdpa"], "--ab names the kernels; leave out --kernel, or --ab"),
        (["quick", "--strategy", "usp"], "no sweep of suite quick has strategies; leave out --strategy, or"),
        (["quick", "--placement", "auto"], "no sweep of suite quick has strategies; leave out --placement, or"),
        (["kept", "--kernel", "sdpa"], "unknown kernel of suite kept 'sdpa'"),
        (["kept", "--mask", "causal"], "unknown mask pattern of suite kept 'causal'"),
    ],
)
def test_what_is_refused(fakes, arguments, said):
    ran = fakes.longca("run", *arguments, "--dry-run")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert said in ran.stderr
