"""Tests of what is looked at as global state."""

from __future__ import annotations

import json
import subprocess
import sys

from longca_bench.measuring.global_state import GlobalState

#: Each sets a precision that no other one has set. PyTorch's older flags cannot be read any more after the first.
PRECISIONS = (
    "torch.backends.fp32_precision = 'tf32'",
    "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "torch.backends.cudnn.allow_tf32 = False",
)
LOOKS = """
import json, sys, torch
from longca_bench.measuring.global_state import GlobalState
state, found = GlobalState(), []
for change in json.loads(sys.argv[1]):
    exec(change)
    found.append((state.changed(), state.changed()))
print(json.dumps(found))
"""


def test_a_precision_is_named_by_whatever_flag_it_is_set() -> None:
    command = [sys.executable, "-W", "error", "-c", LOOKS, json.dumps(PRECISIONS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[["float32 precision"], []]] * len(PRECISIONS)


def test_names_of_many_changes_are_few_and_short(monkeypatch) -> None:
    state = GlobalState()
    for number in range(100):
        monkeypatch.setenv(f"{number:03}\x1b" + 500 * "x", "")
    names = state.changed()
    assert (len(names), names[-1]) == (41, "and 60 more")
    assert max(map(len, names)) <= 40
    assert not any("\x1b" in name for name in names)
