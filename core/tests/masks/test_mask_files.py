import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longca.errors import MaskError
from longca.masks import build, get_pattern, sample
from longca_bench.cli.app import app


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("seqlen_k", [40, 64])
def test_a_mask_of_a_file_is_named_by_its_path(seqlen_k):
    mask = build("causal_sliding_window", 40, seqlen_k=seqlen_k, window=9)
    np.save("m.npy", mask.dense())
    torch.save(torch.from_numpy(mask.dense()), "m.pt")
    options = ["--seqlen", "40", "--seqlen-k", str(seqlen_k), "--window", "9", "--json"]
    Path("m.json").write_text(CliRunner().invoke(app, ["show-mask", "causal_sliding_window", *options]).stdout)
    for name in ("m.npy", "m.pt", "m.json"):
        assert get_pattern(name).size == (40, seqlen_k)
        assert sample(name, 40) == mask
        assert build(f"{name} & causal", 40) == mask
        assert build(name, 40).pattern == name
    with pytest.raises(MaskError, match=f"m.npy is a mask of 40 × {seqlen_k} tokens, and 41 × {seqlen_k} were asked"):
        build("m.npy", 41)
    np.save("m.npy", ~mask.dense())
    assert build("m.npy", 40) == ~mask


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("no.npy", None, "no.npy cannot be read: No such file or directory; check the path"),
        ("m.txt", b"1", r"m.txt: a mask is a boolean matrix in .npy or .pt, slices in .json"),
        ("m.npy", b"1", r"m.npy holds no mask; write booleans \[queries, keys\] with numpy.save or torch.save"),
        ("m.pt", b"1", "m.pt holds no mask; write booleans"),
        ("m.json", b"[1]", "m.json holds no mask; write seqlen_q, seqlen_k and slices of six numbers"),
        ("m.json", {"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 4, 0, 4]]}, "m.json holds no mask; write seqlen_q"),
        (
            "m.json",
            {"seqlen_q": 4, "seqlen_k": 4, "slices": [[0, 9, 0, 4, None, 0]]},
            "m.json: a slice reaches query 9",
        ),
    ],
)
def test_files_that_hold_no_mask_are_refused(name, content, said):
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(MaskError, match=said):
        get_pattern(name)


def test_a_matrix_of_another_kind_is_refused():
    np.save("m.npy", np.ones((2, 4, 4), bool))
    with pytest.raises(MaskError, match=r"m.npy: the matrix is \[2, 4, 4\]; give \[queries, keys\]"):
        get_pattern("m.npy")
