"""`longca show-mask`, as it is called."""

import pytest


@pytest.mark.parametrize("where", [[], ["--json"], ["--out", "mask.png"]], ids=" ".join)
@pytest.mark.parametrize("tile", ["0", "-3"])
def test_tiles_smaller_than_a_token_are_refused(fakes, where, tile):
    ran = fakes.longca("show-mask", "causal", "--seqlen", "64", "--tile", tile, *where)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: blocks of {tile} tokens cannot be drawn; take 1 or more\n"


def test_what_is_written_is_said(fakes, tmp_path):
    file = tmp_path / "a [red] mask.svg"
    ran = fakes.longca("show-mask", "causal", "--seqlen", "64", "--out", str(file))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"wrote {file}\n", "")
    assert file.exists()
    assert fakes.longca("show-mask", "causal", "--seqlen", "64", "--out", str(file), "--json").stdout.startswith("{")
