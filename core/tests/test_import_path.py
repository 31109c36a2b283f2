"""Modules of the working folder are imported by no worker, and a user's function there is found."""

import sys
from pathlib import Path

SCRIPT = str(Path(sys.executable).with_name("longca"))
FUNCTION = """
import torch

def attention(q, k, v, causal):
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return found.transpose(0, 1)
"""


def test_a_run_beside_a_module_named_like_one_of_pythons(fakes):
    for name in ("queue", "json", "numpy"):
        (fakes.root / f"{name}.py").write_text("raise SystemExit(9)\n")
    one = "run causal --seqlen 64 --heads 2:1 --head-dim 16 --dtype float32 --device cpu --direction forward"
    ran = fakes.python(SCRIPT, *one.split(), "--kernel", "naive")
    assert "1 case: 1 ok" in ran.stdout, ran.stderr
