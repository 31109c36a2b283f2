"""Skips GPU tests if there is no GPU or no cuDNN frontend."""

import importlib.util

import pytest
import torch


def pytest_runtest_setup(item):
    if not item.get_closest_marker("gpu"):
        return
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")
    if importlib.util.find_spec("cudnn") is None:
        pytest.skip("needs nvidia-cudnn-frontend, which is not installed")
