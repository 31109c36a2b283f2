"""Discovery: from entry points to a catalogue of the kernels and strategies that plugins provide.

A plugin that crashes, hangs or exits while it is imported does no harm to the others. `candidates` finds the plugins.
`probing` (with `probe` and `probe_cache`) imports each one in another process first. `admission` imports it here and
calls its hooks. `catalogue` collects the results. `loading` resolves import strings at first use.
"""
