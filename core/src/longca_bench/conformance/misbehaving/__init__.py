"""Misbehaving kernels: each breaks one promise and keeps all others. They show whether a harness can be fooled.

`table.py` lists them, and says what a record of each must say. `plugin.py` writes distributions that provide them.
The other modules have the kernels: `honest.py` has their base, which is right.
"""
