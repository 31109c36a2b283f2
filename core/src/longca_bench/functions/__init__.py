"""Functions of users: attention that has no manifest, verified and measured as a kernel.

| module | |
|---|---|
| `user_function`, `arguments` | a function, and the values of the parameters that LongCA fills |
| `function_kernel`, `function_plugin` | a function as a kernel, and a temporary plugin that provides this kernel |
| `ranks` | the tokens of each rank, cut and gathered |
| `function_masks` | the masks on which a function is verified, and those of wrong functions |
| `check` | the verification of a function |
"""
