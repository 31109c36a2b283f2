"""Functions of users: attention that has no manifest, verified and measured as a kernel.

| module | |
|---|---|
| `user_function` | a function, its name, and the parameters that LongCA fills |
| `arguments` | the values of these parameters for a mask |
| `function_kernel` | a function as a kernel, in the shape of its tensors |
| `function_plugin` | a temporary plugin that provides this kernel |
| `function_masks` | the masks on which a function is verified |
| `ranks` | the tokens of each rank, cut and gathered |
| `rotary` | the right results with rotary positions |
| `mistakes` | the known mistakes, and the masks of a function that makes them |
| `check` | the verification of a function |
"""
