"""Kernels: the contract, the oracle, what PyTorch ships, and attention as a differentiable function.

Nothing is imported here, so that listings, which need `builtin` alone, stay free of torch.
"""
