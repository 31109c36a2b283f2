"""Attention over several ranks: layouts, meshes, the contract of a strategy, and merging partial results."""
