"""The command line. Commands import what they need when they run: a listing never waits for torch."""

from longca_bench.cli.app import main

__all__ = ["main"]
