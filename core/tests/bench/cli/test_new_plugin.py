"""`longca new-plugin`, as it is called with names and in folders that it refuses: no folder is left behind."""

import resource

import pytest

from longca_bench.cli.new_plugin import compatible_range

from ...fake_plugins import STRATEGY, provides


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My Kernel", "'My Kernel' cannot name a plugin; give at most 40 of a-z, 0-9, - and _"),
        ("k" * 41, "cannot name a plugin; give at most 40"),
        ("auto", "auto stands for LongCA's own choice; choose another name"),
        ("quick-one", "a kernel 'quick_one' is installed"),
        ("round", "a strategy 'round' is installed"),
        ("renamed", "a package longca_renamed is installed"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(fakes, name, said):
    fakes.add("quick", provides("quick_one"))
    fakes.add("rounds", STRATEGY)
    fakes.add("longca-renamed", "", module="another_module")
    before = set(fakes.root.iterdir())
    assert said in fakes.refuses("new-plugin", name)
    assert set(fakes.root.iterdir()) - before <= {fakes.root / "cache"}


def test_the_prefix_of_distributions_is_not_doubled(fakes):
    assert "The kernel my_kernel is in longca-my-kernel." in fakes.says("new-plugin", "longca_my-kernel")


@pytest.mark.parametrize("kind", [(), ("--strategy",)], ids=["kernel", "strategy"])
def test_the_longest_name_gives_clean_code(fakes, kind):
    fakes.says("new-plugin", *kind, "k" * 40)
    for command in ("check", "format --check"):
        ran = fakes.python("-m", "ruff", *command.split(), "longca-" + "k" * 40)
        assert ran.returncode == 0, ran.stdout


def test_a_folder_that_exists_is_left_as_it_is(fakes):
    (fakes.root / "longca-mine").mkdir()
    (fakes.root / "longca-mine" / "thesis.tex").write_text("years of work", "utf-8")
    assert "longca-mine exists here; choose another name" in fakes.refuses("new-plugin", "mine")
    assert [path.name for path in (fakes.root / "longca-mine").iterdir()] == ["thesis.tex"]


def test_a_disk_that_is_full_leaves_no_half_of_a_plugin(fakes):
    code = (
        f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1500, {resource.RLIM_INFINITY}));"
        "sys.argv = ['longca', 'new-plugin', 'mine']; runpy.run_module('longca', run_name='__main__')"
    )
    ran = fakes.python("-c", code, PATH="")  # copier calls git where it is installed, and git would stop first
    assert ran.returncode == 2
    assert "error: longca-mine cannot be written: File too large" in ran.stderr
    assert not (fakes.root / "longca-mine").exists()


def test_without_copier_the_extra_is_named(fakes):
    code = (
        "import runpy, sys; sys.modules['copier'] = None; sys.argv = ['longca', 'new-plugin', 'mine'];"
        "runpy.run_module('longca', run_name='__main__')"
    )
    ran = fakes.python("-c", code)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "new-plugin needs copier, which is not installed. Install it: pip install" in ran.stderr
    assert not (fakes.root / "longca-mine").exists()


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("0.1.0", ">=0.1,<0.2"), ("0.9.3", ">=0.9,<0.10"), ("1.2.3", ">=1.2,<2")],
)
def test_a_plugin_asks_for_the_versions_with_the_same_interface(version, allowed):
    assert compatible_range(version) == allowed
