"""Advice: which kernel and which strategy to take for a problem, from evidence and without a GPU. Torch-free."""
