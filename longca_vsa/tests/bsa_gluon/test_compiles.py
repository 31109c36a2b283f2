"""The kernel is compiled for Hopper by the installed Triton, which needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from packaging.requirements import Requirement
from packaging.version import Version

from longca_vsa.bsa_gluon import BSA_GLUON

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from longca_vsa.bsa_gluon import launch
from longca_vsa.bsa_gluon.forward import attend

dtype, packed, constants = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
def block(*shape):
    return f"tensordesc<{dtype}[{', '.join(map(str, shape))}],{launch._BLOCKS!r}>"
types = dict.fromkeys(attend.arg_names, "i32") | {
    "q": block(64 // packed, packed, 64), "k": block(64, 1, 64), "v": block(64, 1, 64),
    "out": block(64 // packed, packed, 64), "lse": "*fp32", "order": "*i32", "tiles": "*i32", "entries": "*u16",
    "offsets": "*i64", "scale": "fp32",
}
constants |= {"PACKED": packed, "LAYOUT": launch._ROWS}
source = GluonASTSource(attend, types | dict.fromkeys(constants, "constexpr"), constants, {})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(json.dumps({"shared": made.metadata.shared, "ptx": made.asm["ptx"]}))
"""


@pytest.mark.parametrize(
    ("dtype", "packed", "constants"),
    [("bf16", 8, {"unit": 1}), pytest.param("fp16", 1, {}, marks=pytest.mark.exhaustive)],
)
def test_for_hopper(dtype, packed, constants, tmp_path):
    (requirement,) = map(Requirement, BSA_GLUON.requires)
    import triton

    if Version(triton.__version__) not in requirement.specifier:
        pytest.skip(f"Triton {triton.__version__} is not {requirement}")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", COMPILE, dtype, str(packed), json.dumps(constants)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout.splitlines()[0])
    assert made["shared"] <= 227 * 2**10, "a multiprocessor of Hopper has as much"
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor.3d", "setmaxnreg"):
        assert instruction in made["ptx"]
    lines = [line.strip() for line in made["ptx"].splitlines() if line.strip() and not line.strip().startswith(".loc")]
    arrivals = [n for n, line in enumerate(lines) if "mbarrier.arrive.shared" in line]
    assert len(arrivals) >= 10
    # One thread arrives for its warps, so all of them must have come there.
    assert all("bar.sync" in "".join(lines[n - 6 : n]) for n in arrivals)
