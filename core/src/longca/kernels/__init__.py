"""Attention as a differentiable function: the contract of a kernel, pairs, and the choice of a kernel."""
