"""Suites, and the cases and tasks that they expand into."""
