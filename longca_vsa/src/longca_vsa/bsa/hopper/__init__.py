"""The backward's kernel by key blocks for Hopper, in Gluon: dk, dv and the gradients of scores.

One warp copies queries and their gradients, and two warp groups compute by turns. The keys and values of a program stay
in shared memory. `launches_by_part.py` beside this folder takes it where `configs.py` says so.
"""
