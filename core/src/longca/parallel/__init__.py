"""Attention over several ranks.

| module | |
|---|---|
| `attention` | a call under a strategy, differentiable, and its prefetch |
| `agreement` | the comparison of calls between ranks |
| `layouts` | `longca.layout`: the tokens and the steps of each rank |
| `meshes` | the axes of a strategy on a device mesh, and `rank_in` |
| `strategy` | the contract of a strategy, and its transport |
| `merge`, `merge_triton` | partial results put together |
| `pushes`, `shared_choice` | copies into the memory of peers, and blocks that ranks choose together |
"""
