"""Runs: workers, timing, records and what a machine was like."""
