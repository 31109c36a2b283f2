"""A temporary plugin around a user's function, so that commands and workers find it as they find any kernel."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from longca.manifests import Backward, KernelManifest, Offer
from longca.masks import Form
from longca_bench.functions.function_kernel import FunctionKernel, Shape
from longca_bench.functions.user_function import UserFunction, load, names_of

__all__ = ["install", "kernel_of"]

_MODULE = "longca_function_of_yours"
_CODE = '''"""A function as a kernel."""

from longca import KernelManifest, hookimpl


@hookimpl
def provide_kernel():
    return KernelManifest.model_validate_json({manifest!r})


def made():
    from longca_bench.functions.function_plugin import kernel_of

    return kernel_of({text!r}, {shape!r}, {batch})
'''


def kernel_of(text: str, shape: str, batch: int = 1) -> FunctionKernel:
    """The kernel of a function that is named by its module. See `FunctionKernel`."""
    return FunctionKernel(UserFunction.of(load(text), text), Shape.named(shape), batch)


def install(text: str, shape: str, batch: int = 1) -> str:
    """Makes a function a kernel of this process and of the processes that it starts, until it ends.

    Returns:
        The kernel's name: that of the function, in lower case, after `my_`.

    Raises:
        RequestError: The text names no function that can be called, or the shape is unknown.
    """
    kernel_of(text, shape)
    function = names_of(text)[1].rpartition(".")[2]
    name = f"my_{re.sub(r'[^a-z0-9_]', '_', function.lower())}"[:40]
    folder = Path(tempfile.mkdtemp(prefix="longca-function-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    info = folder / f"{_MODULE}-1.0.dist-info"
    info.mkdir()
    manifest = _manifest(name, text).model_dump_json(exclude_defaults=True)
    code = _CODE.format(manifest=manifest, text=text, shape=shape, batch=batch)
    (folder / f"{_MODULE}.py").write_text(code, "utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_MODULE}\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[longca]\n{_MODULE} = {_MODULE}\n", "utf-8")
    (info / "RECORD").write_text(f"{_MODULE}.py,,\n", "utf-8")
    sys.modules.pop(_MODULE, None)  # of an earlier function
    path = [str(folder), os.getcwd()]
    sys.path[:0] = path
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])
    if plugins := os.environ.get("LONGCA_PLUGINS"):
        os.environ["LONGCA_PLUGINS"] = f"{plugins},{_MODULE}"
    return name


def _manifest(name: str, text: str) -> KernelManifest:
    """A manifest that takes every problem. Verification says which problems the function computes."""
    dtypes = ("float64", "float32", "bfloat16", "float16")
    about = {"unequal_lengths": True, "backward": Backward.OWN, "dtypes": dtypes, "cpu": True, "verified_on": ">=5.0"}
    blocks = {"variable_blocks": True, "mask_heads": "query", "form": Form.BLOCK_SPARSE}
    offers = [{"form": Form.ROW_INTERVALS, **about}, {**blocks, **about}]
    return KernelManifest(
        name=name,
        family="function",
        title=text,
        upstream="https://longca.invalid/function",
        license="unknown",
        implementation=f"{_MODULE}:made",
        offers=tuple(Offer(metadata="O(S²)", fills_buffers=False, optional_lse=True, **offer) for offer in offers),  # type: ignore[arg-type]
    )
