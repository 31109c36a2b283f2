"""Holding a kernel against float64 attention."""
