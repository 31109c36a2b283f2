"""Runs `interpreted/`: bsa on the steps of every strategy, on the CPU, under Triton's interpreter."""

from pathlib import Path

from longca_triton.checking import interpreted

test_interpreted = interpreted(Path(__file__).parent / "interpreted")
