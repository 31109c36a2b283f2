"""Runs `interpreted/`: the functions that kernels are made of, on the CPU, under Triton's interpreter."""

from pathlib import Path

from longca_triton.checking import interpreted

test_interpreted = interpreted(Path(__file__).parent / "interpreted")
