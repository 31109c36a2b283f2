"""A guarded registry answers as one that imports its plugins, for all that are installed."""

import os
import subprocess
import sys

SAME = """
from dataclasses import replace
from itertools import product
from longca import Device, Problem, masks
from longca.errors import UnsupportedError
from longca.plugins import registry

open_, guarded = registry(), registry(guarded=True)
assert open_.kernels == guarded.kernels and open_.strategies == guarded.strategies
assert open_.plugins == guarded.plugins
causal = Problem(mask=masks.build("causal", 256), heads_q=4, device=Device("cuda", (9, 0)))
window = masks.build("causal_sliding_window", 256, window=32)
for name, mask in product(open_.kernels, (causal.mask, window, *masks.PATTERNS.values())):
    problem = replace(causal, mask=mask)
    assert open_.resolve(name, problem, anywhere=True) == guarded.resolve(name, problem, anywhere=True), (name, mask)

def answers(found):
    for manifest in found.strategies.values():
        sizes = dict.fromkeys(manifest.axes, 2)
        for placement in manifest.placements:
            try:
                layout = found.layout(manifest.name, causal, sizes, placement)
            except UnsupportedError as error:
                yield str(error)
                continue
            yield layout
            for kernel in found.kernels:
                yield found.resolve(kernel, causal, layout, anywhere=True)
            if manifest.schedule:
                yield found.call(manifest, "schedule", causal, layout, True)
        if manifest.memory:
            yield found.call(manifest, "memory", causal, sizes, True)
    for manifest in found.kernels.values():
        verdict = found.resolve(manifest.name, causal, anywhere=True)
        for field in ("workspace", "plan_bytes") if verdict else ():
            if getattr(manifest, field):
                yield found.call(manifest, field, causal, verdict.offer.form)

assert (said := list(answers(open_))) == list(answers(guarded))
assert {"Layout", "Verdict", "StrategyMemory", "tuple", "int"} <= {type(answer).__name__ for answer in said}
"""


def test_installed_plugins_answer_the_same_either_way(tmp_path):
    env = {**os.environ, "LONGCA_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", SAME], env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
