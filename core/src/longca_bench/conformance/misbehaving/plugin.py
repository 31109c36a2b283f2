"""Distributions of all misbehaving kernels, so that any harness finds them by their entry points."""

from __future__ import annotations

from pathlib import Path
from pprint import pformat

from longca.manifests import Backward, KernelManifest, Offer
from longca.masks import Form
from longca_bench.conformance.misbehaving.table import MISBEHAVING, Misbehaviour

__all__ = ["misbehaving_plugins"]

_PROVIDES = '''"""Kernels that misbehave, each in one respect."""

from longca import KernelManifest, hookimpl


@hookimpl
def provide_kernel():
    return tuple(map(KernelManifest.model_validate_json, MANIFESTS))


MANIFESTS = {manifests}
'''

_RIGHT = "\nfrom longca_bench.conformance.misbehaving.honest import Honest as Kernel\n"
#: The modules that misbehave when they are imported.
_AT_IMPORT = {
    "dtype_at_import": f"import torch\ntorch.set_default_dtype(torch.float64){_RIGHT}",
    "threads_at_import": f"import torch\ntorch.set_num_threads(torch.get_num_threads() + 1){_RIGHT}",
    "exits_at_import": "import os\nos._exit(0)\n",
    "raises_at_import": "raise SystemExit(0)\n",
    "hangs_at_import": "import time\nwhile True:\n    time.sleep(60)\n",
}


def misbehaving_plugins(folder: Path) -> Path:
    """Writes the distributions that `MISBEHAVING` names. They provide each kernel under its name.

    A Python that has the folder on its path (`PYTHONPATH`) sees the distributions as installed.

    Args:
        folder: The folder. It is made if it is missing.

    Returns:
        The folder.
    """
    for distribution in dict.fromkeys(kernel.distribution for kernel in MISBEHAVING):
        kernels = [kernel for kernel in MISBEHAVING if kernel.distribution == distribution]
        manifests = pformat([_manifest(kernel).model_dump_json(exclude_defaults=True) for kernel in kernels], width=120)
        module = distribution.replace("-", "_")
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (folder / f"{module}.py").write_text(_PROVIDES.format(manifests=manifests), "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[longca]\n{module} = {module}\n", "utf-8")
        (info / "RECORD").write_text(f"{module}.py,,\n", "utf-8")
    for name, code in _AT_IMPORT.items():
        (folder / f"misbehaving_{name}.py").write_text(code, "utf-8")
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
        verified_on=">=7.0" if kernel.runs_on("cuda") else None,
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
