"""Measuring: one pipeline for one device and for several ranks, from cases to records.

The order of modules on the way of a case: `runner` resolves it, `pool` hands it to a `worker`, `bench` measures it on a
`world` as a `trial`, `timing` times it, and `case_record` makes its record in the `run_folder`.
"""
