"""The digests of a kernel's sources: which files change them."""

import sys

import pytest

from longca_bench.conformance.provenance import kits, source_digests

from ...fake_plugins import provides


@pytest.fixture
def packaged(open_registry, fakes, monkeypatch):
    """The registry and the folder of a kernel whose plugin is a package, beside one that is a single module."""
    registry = open_registry(
        packaged=provides("ours", implementation="packaged.kernel:Ours"),
        single=provides("theirs", implementation="packaged.kernel:Ours"),
    )
    folder = fakes.folders[0]
    package = folder / "packaged"
    package.mkdir()
    (folder / "packaged.py").rename(package / "__init__.py")
    (package / "kernel.py").write_text("class Ours: ...\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "packaged"]:
        monkeypatch.delitem(sys.modules, name)
    return registry, folder


def write(path, text="x"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("changed", ["kernel.py", "more/tiles.cu"])
def test_a_file_of_the_package_changes_the_digest(packaged, changed):
    registry, folder = packaged
    before = source_digests(registry, "ours")
    assert [*before] == ["packaged"]
    write(folder / "packaged" / changed, "changed = True\n")
    assert source_digests(registry, "ours") != before


@pytest.mark.parametrize("unrelated", ["beside.py", "packaged/__pycache__/kernel.cpython-312.pyc", "tests/test_it.py"])
def test_an_unrelated_file_does_not(packaged, unrelated):
    registry, folder = packaged
    before = source_digests(registry, "ours")
    write(folder / unrelated)
    assert source_digests(registry, "ours") == before


def test_a_module_without_a_package_stands_for_itself(packaged, fakes):
    registry, folder = packaged
    before = source_digests(registry, "theirs")
    assert [*before] == ["packaged", "single"]
    write(fakes.folders[1] / "beside.py")
    assert source_digests(registry, "theirs") == before
    write(folder / "packaged" / "kernel.py", "changed = True\n")
    after = source_digests(registry, "theirs")
    assert after["single"] == before["single"]
    assert after["packaged"] != before["packaged"]


def test_sources_that_are_not_found_have_no_digest(open_registry):
    registry = open_registry(lost=provides("lost", implementation="nowhere.at_all:Lost"))
    assert source_digests(registry, "lost")["nowhere.at_all"] is None


def test_a_file_that_cannot_be_read_leaves_no_digest(packaged):
    registry, folder = packaged
    (folder / "packaged" / "gone.py").symlink_to("nowhere")
    assert source_digests(registry, "ours") == {"packaged": None}


def test_kits_belong_to_the_sources(open_registry, fakes, monkeypatch):
    registry = open_registry(user=provides("user"))
    needs = {"user": ["longca-core", "a-kit>=1", "plain"], "a-kit": ["longca-core>=0.1"], "plain": ["torch"]}
    for name, needed in needs.items():
        folder = fakes.folders[0] if name == "user" else fakes.add(name, "", prelude=False)
        info = next(folder.glob("*.dist-info")).rename(folder / f"{name.replace('-', '_')}-1.0.dist-info")
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        (info / "METADATA").write_text(text + "".join(f"Requires-Dist: {each}\n" for each in needed))
        if name != "user":
            (info / "entry_points.txt").unlink()
            monkeypatch.syspath_prepend(folder)
    assert kits("user") == ["a-kit"]
    assert "a_kit" in source_digests(registry, "user")
    assert "plain" not in source_digests(registry, "user")
