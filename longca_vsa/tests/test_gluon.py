"""The kernels in Gluon are compiled for Hopper by the installed Triton, which needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from packaging.requirements import Requirement
from packaging.version import Version

from longca_vsa.bsa_gluon import BSA_GLUON

BEGIN = """
import json, sys

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from longca_vsa.gluon import ROWS

def block(dtype, shape, layout):
    return f"tensordesc<{dtype}[{', '.join(map(str, shape))}],{layout!r}>"
"""
END = """
types |= dict.fromkeys(constants, "constexpr")
source = GluonASTSource(kernel, dict.fromkeys(kernel.arg_names, "i32") | types, constants, {})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(json.dumps({"shared": made.metadata.shared, "ptx": made.asm["ptx"]}))
"""

FORWARD = """
from longca_vsa.bsa_gluon.forward import attend as kernel
from longca_vsa.bsa_gluon.launch import _BLOCKS

dtype, packed, constants = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
rows, keys = (block(dtype, shape, _BLOCKS) for shape in ((64 // packed, packed, 64), (64, 1, 64)))
types = {
    "q": rows, "k": keys, "v": keys, "out": rows, "lse": "*fp32", "order": "*i32", "tiles": "*i32", "entries": "*u16",
    "offsets": "*i64", "scale": "fp32",
}
constants |= {"PACKED": packed, "LAYOUT": ROWS}
"""
DKDV = """
from longca_vsa.bsa.hopper.dkdv import gather_dkdv as kernel
from longca_vsa.bsa.hopper.launch import _SUMS, _VECTORS

dtype, adds = sys.argv[1], sys.argv[2] == "adds"
constants = {"ADDS": adds, "ROWS": ROWS, "VECTORS": _VECTORS, "SUMS": _SUMS}
types = dict.fromkeys(("q", "k", "v", "dout"), block(dtype, (64, 128), ROWS))
types |= dict.fromkeys(("exponents", "deltas"), block("fp32", (1, 64), _VECTORS))
types |= dict.fromkeys(("dk", "dv"), "*fp32" if adds else f"*{dtype}") | dict.fromkeys(("dk_sums", "dv_sums"), "*fp32")
types |= dict.fromkeys(("first_rows", "order", "tiles", "steps"), "*i32")
types |= {"dscores": block(dtype, (64, 64), ROWS), "entries": "*u16", "offsets": "*i64", "scale": "fp32"}
"""


class Compiled(NamedTuple):
    """A compiled kernel.

    Attributes:
        shared: Bytes of shared memory.
        ptx: Its instructions.
        said: What the assembler says of registers.
    """

    shared: int
    ptx: str
    said: str


def compile_for_hopper(code: str, folder: Path, *arguments: str) -> Compiled:
    """Compiles a kernel in a process of its own.

    Args:
        code: Python code that sets `kernel`, `types` of arguments that are not int32, and `constants`.
        folder: Where the compiler keeps what it made.
        arguments: What the code finds in `sys.argv`.
    """
    (requirement,) = map(Requirement, BSA_GLUON.requires)
    import triton

    if Version(triton.__version__) not in requirement.specifier:
        pytest.skip(f"Triton {triton.__version__} is not {requirement}")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "TRITON_DUMP_PTXAS_LOG": "1"}
    command = [sys.executable, "-c", BEGIN + code + END, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    *said, made = done.stdout.splitlines()
    assert any("registers" in line for line in said)
    return Compiled(**json.loads(made), said="\n".join(said))


def check_for_hopper(made: Compiled) -> None:
    """Checks what all kernels for Hopper must have."""
    assert made.shared <= 227 * 2**10, "a multiprocessor of Hopper has as much"
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"):
        assert instruction in made.ptx
    assert "serialized" not in made.said, "too many registers: one product would wait for the other"
    lines = [line.strip() for line in made.ptx.splitlines() if line.strip() and not line.strip().startswith(".loc")]
    arrivals = [n for n, line in enumerate(lines) if "mbarrier.arrive.shared" in line]
    assert len(arrivals) >= 10
    # One thread arrives for its warps, so all of them must have come there.
    assert all("bar.sync" in "".join(lines[n - 6 : n]) for n in arrivals)


@pytest.mark.parametrize(
    ("dtype", "packed", "constants"),
    [("bf16", 8, {"unit": 1}), pytest.param("fp16", 1, {}, marks=pytest.mark.exhaustive)],
)
def test_the_forward(dtype, packed, constants, tmp_path):
    check_for_hopper(compile_for_hopper(FORWARD, tmp_path, dtype, str(packed), json.dumps(constants)))


@pytest.mark.parametrize(
    ("dtype", "adds"), [("bf16", "adds"), pytest.param("fp16", "writes", marks=pytest.mark.exhaustive)]
)
def test_dk_and_dv(dtype, adds, tmp_path):
    made = compile_for_hopper(DKDV, tmp_path, dtype, adds)
    check_for_hopper(made)
    assert "stmatrix.sync.aligned.m8n8.x4.trans" in made.ptx, "gradients of scores leave queries by keys"
