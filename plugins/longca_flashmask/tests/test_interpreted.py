"""Runs `interpreted/`: the kernels on the CPU, under Triton's interpreter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from longca_triton.checking import run_interpreted

CHECKS = sorted((Path(__file__).parent / "interpreted").glob("check_*.py"))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("path", CHECKS, ids=lambda path: path.stem)
def test_interpreted(path):
    done = run_interpreted(path)
    assert done.returncode == 0, done.stdout
