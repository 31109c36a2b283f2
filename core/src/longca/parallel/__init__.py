"""Attention over several ranks.

| module | |
|---|---|
| `attention` | a call under a strategy, differentiable |
| `layouts` | `longca.layout`: the tokens and the steps of each rank |
| `meshes` | the axes of a strategy on a device mesh, and `rank_in` |
| `strategy` | the contract of a strategy |
| `transport` | the way in which a strategy moves tensors, asked and checked |
| `merge`, `merge_triton` | partial results put together |
"""
