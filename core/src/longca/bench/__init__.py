"""Measuring: suites, cases, verification, timing and records."""
