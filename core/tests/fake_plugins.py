"""Distributions made of a folder each: a module, and the metadata that an installer would have written."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

#: What a plugin's module usually begins with.
PRELUDE = """
from longca import Backward, KernelManifest, Offer, Reason, StrategyManifest, Verdict, hookimpl

def kernel(name, *offers, **fields):
    fields = {"title": name, "upstream": "https://example.org", "license": "MIT", "family": "fake",
              "implementation": "fake_kernels:Fake", **fields}
    return KernelManifest(name=name, offers=offers or (offer(),), **fields)

def offer(form="full", **fields):
    return Offer(**{"form": form, "dtypes": ("bfloat16", "float32"), "cpu": True, "metadata": "O(1)", **fields})
"""

#: A kernel that takes causal masks, and any others by intervals.
KERNEL = """
@hookimpl
def provide_kernel():
    return kernel("{name}", offer("causal"), offer("row_intervals", unequal_lengths=True), {fields})
"""


def provides(name, **fields):
    return KERNEL.format(name=name, fields=", ".join(f"{key}={value!r}" for key, value in fields.items()))


#: A hook that may refuse masks, and a body of one that does.
VETO = """
@hookimpl
def supports_mask(kernel, problem):
    {body}
"""
NO = 'return Verdict(kernel, None, (Reason("plugin", "this one was asked", kernel + " takes no such mask"),))'

#: A strategy of one axis with four placements, one of which has no layout, and two the same.
STRATEGY = """
@hookimpl
def provide_cp_strategy():
    return StrategyManifest(name="round", title="Round", upstream="-", license="MIT", axes=("ring",),
        placements=("halves", "stripes", "again", "nowhere"), implementation="round_strategy:Round",
        layout="round_strategy:layout")

import sys, types
module = sys.modules.setdefault("round_strategy", types.ModuleType("round_strategy"))
class Round: ...
module.Round = Round
def layout(problem, axis_sizes, placement):
    from longca import Layout, Step
    from longca.errors import UnsupportedError
    if placement == "nowhere" or axis_sizes["ring"] > 4:
        raise UnsupportedError("too many")
    if axis_sizes["ring"] == 3:
        return None
    if axis_sizes["ring"] == 4:
        return Layout(((),), (((0, 64),),))
    stripes = tuple(tuple((i, i + 16) for i in range(16 * r, 64, 32)) for r in range(2))
    shards = (((0, 32),), ((32, 64),)) if placement == "halves" else stripes
    return Layout(tuple((Step(shard, ((0, 64),), (0, 4), (0, 4)),) for shard in shards), shards)
module.layout = layout
"""


class FakePlugins:
    """Temporary distributions, and a Python that sees them beside what is installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: list[Path] = []
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LONGCA_")},
            "LONGCA_HISTORY": str(root / "history.jsonl"),
            "LONGCA_VERIFIED": str(root / "verified.jsonl"),
            "COLUMNS": "100",
        }

    def add(self, distribution, code, *, entry=None, module=None, version="1.0", prelude=True):
        """Writes a distribution whose one entry point names a module with this code."""
        module = module or distribution.replace("-", "_")
        folder = self.root / f"dist{len(self.folders)}"
        info = folder / f"fake{len(self.folders)}-{version}.dist-info"
        info.mkdir(parents=True)
        if code is not None:
            path = folder / f"{module}.py"
            path.write_text((PRELUDE if prelude else "") + dedent(code), "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[longca]\n{entry or module} = {module}\n", "utf-8")
        (info / "RECORD").write_text(f"{module}.py,,\n", "utf-8")
        self.folders.append(folder)
        return folder

    def python(self, *arguments, timeout=600, **env):
        """Runs Python with the distributions on its path."""
        return subprocess.run(
            [sys.executable, *arguments],
            env={**self.env, "PYTHONPATH": os.pathsep.join(map(str, self.folders)), **env},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def longca(self, *arguments, **env):
        """Runs the command line."""
        return self.python("-m", "longca", *arguments, **env)

    def says(self, *arguments, without=(), **env):
        """The output of a command that ends well and has no complaint, in a Python that lacks some modules."""
        run = (
            f"import runpy, sys; sys.modules.update(dict.fromkeys({without!r})); sys.argv = {['longca', *arguments]!r}"
        )
        ran = self.python("-c", f"{run}; runpy.run_module('longca', run_name='__main__')", **env)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    def refuses(self, *arguments, **env):
        """The message of a command that is refused, which is one line."""
        ran = self.longca(*arguments, **env)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        return ran.stderr

    def plugins(self, *arguments, **env):
        """What `longca plugins --json` says, by distribution; the core's and installed ones are left out."""
        ran = self.longca("plugins", "--json", *arguments, **env)
        assert ran.returncode == 0, ran.stderr
        added = {plugin["distribution"]: plugin for plugin in json.loads(ran.stdout)}
        assert added["longca-core"]["kernels"][:2] == ["naive", "sdpa"]
        return added
