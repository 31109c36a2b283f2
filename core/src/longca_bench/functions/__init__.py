"""Functions of users: attention that has no manifest, held to float64 attention, and measured beside kernels.

| module | |
|---|---|
| `user_function` | a function, its name, and the parameters that LongCA fills |
| `arguments` | the parameters and their values |
| `shapes` | the shapes of a function's tensors |
| `ranks` | the tokens of each rank, cut and gathered |
| `calling` | one call, with its gradients |
| `remote`, `commands`, `worker` | a function that a worker imports and calls |
| `oracle` | the right results, with rotary positions and with a part of the pairs |
| `guesses`, `mask_guesses`, `rank_guesses` | what a function with a known mistake returns |
| `mistakes` | the known mistakes, and the search for those that explain results |
| `mask_sets` | the masks on which a function is verified |
| `check` | the verification of a function, and the mistake that explains it |
| `as_kernel`, `distribution` | a function as a kernel of a run |
"""
