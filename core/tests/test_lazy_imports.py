"""What must not be imported is not, in a fresh interpreter in which importing it fails."""

import pytest

import longca

#: Importing any of these is an error; heavy ones are missing from sys.modules afterwards.
BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "triton", "matplotlib", "tokenizers"}:
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Block())
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["list-capabilities", "--json"],
        ["list-capabilities", "--why", "sdpa", "causal", "--device", "cuda:9.0"],
        ["plugins", "--json"],
        ["doctor", "--json", "--no-timing"],
    ],
    ids=" ".join,
)
def test_listings_import_no_torch(fakes, arguments):
    run = f"import runpy; sys.argv = {['longca', *arguments]!r}; runpy.run_module('longca', run_name='__main__')"
    ran = fakes.python("-c", BLOCK + run)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout


def test_importing_longca_imports_nothing_else(fakes):
    code = "import sys; before = set(sys.modules); import longca; print(*sorted(set(sys.modules) - before))"
    loaded = set(fakes.python("-c", code).stdout.split())
    assert not loaded & {"numpy", "pydantic", "pluggy", "torch", "rich", "typer"}
    assert {name for name in loaded if name.startswith("longca")} == {"longca"}


def test_every_name_but_what_takes_tensors_comes_without_torch(fakes):
    takes_tensors = ("attention", "choose_blocks", "layout", "prefetch", "sdpa", "varlen")
    names = [name for name in longca.__all__ if name not in takes_tensors]
    ran = fakes.python("-c", BLOCK + f"import longca; print(all(getattr(longca, name) for name in {names}))")
    assert (ran.stdout, ran.stderr) == ("True\n", "")
    assert dir(longca) == sorted(longca.__all__)


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        _ = longca.atention
