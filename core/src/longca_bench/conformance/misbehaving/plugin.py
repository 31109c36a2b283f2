"""A distribution of all misbehaving kernels, so that any harness finds them by an entry point."""

from __future__ import annotations

from pathlib import Path
from pprint import pformat

from longca.manifests import Backward, KernelManifest, Offer
from longca.masks import Form
from longca_bench.conformance.misbehaving.table import MISBEHAVING, Misbehaviour

__all__ = ["misbehaving_plugin"]

_NAME, _VERSION = "longca-misbehaving", "1.0"
_MODULE = _NAME.replace("-", "_")

_PROVIDES = '''"""Kernels that misbehave, each in one respect."""

from longca import KernelManifest, hookimpl


@hookimpl
def provide_kernel():
    return tuple(map(KernelManifest.model_validate_json, MANIFESTS))


MANIFESTS = {manifests}
'''

#: The modules that misbehave when they are imported.
_AT_IMPORT = {
    "exits_at_import": "import os\nos._exit(0)\n",
    "raises_at_import": "raise SystemExit(0)\n",
    "hangs_at_import": "import time\nwhile True:\n    time.sleep(60)\n",
}


def misbehaving_plugin(folder: Path) -> Path:
    """Writes the distribution `longca-misbehaving`, which provides each kernel of `MISBEHAVING` under its name.

    A Python that has the folder on its path (`PYTHONPATH`) sees the distribution as installed.

    Args:
        folder: The folder. It is made if it is missing.

    Returns:
        The folder.
    """
    info = folder / f"{_MODULE}-{_VERSION}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    manifests = [_manifest(each).model_dump_json(exclude_defaults=True) for each in MISBEHAVING]
    modules = {_MODULE: _PROVIDES.format(manifests=pformat(manifests, width=120))}
    modules |= {f"{_MODULE}_{name}": code for name, code in _AT_IMPORT.items()}
    for module, code in modules.items():
        (folder / f"{module}.py").write_text(code, "utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {_VERSION}\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[longca]\nmisbehaving = {_MODULE}\n", "utf-8")
    (info / "RECORD").write_text("".join(f"{module}.py,,\n" for module in modules), "utf-8")
    return folder


def _manifest(kernel: Misbehaviour) -> KernelManifest:
    """The manifest of a kernel. It promises more than the kernel does, and the record shows it."""
    offer = Offer(
        form=Form.ROW_INTERVALS,
        unequal_lengths=True,
        mask_heads="query",
        backward=Backward.EXTERNAL,
        dtypes=("float32",),
        cpu=kernel.runs_on("cpu"),
        cuda=">=7.0" if kernel.runs_on("cuda") else None,
        metadata="O(1)",
        fills_buffers=False,
    )
    return KernelManifest(
        name=kernel.name,
        title=kernel.what.rstrip("."),
        family="misbehaving",
        upstream="https://example.org",
        license="Apache-2.0",
        implementation=kernel.kernel,
        offers=(offer,),
    )
