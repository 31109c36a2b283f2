"""Attention over several ranks.

| module | |
|---|---|
| `attention` | a call under a strategy, differentiable, and its prefetch |
| `ready` | everything that a call needs before it moves data |
| `agreement` | the comparison of calls between ranks |
| `layouts` | `longca.layout`: the tokens and the steps of each rank |
| `meshes` | the axes of a strategy on a device mesh, and `rank_in` |
| `strategy`, `transport` | the contract of a strategy, and the way in which it moves tensors |
| `merge`, `merge_triton` | partial results put together |
| `pushes`, `shared_choice` | copies into the memory of peers, and blocks that ranks choose together |
"""
