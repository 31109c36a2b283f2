"""Metadata that kernels read on the device: intervals, block lists and kept blocks."""
