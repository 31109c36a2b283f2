"""Discovery: from entry points to a catalogue of the kernels and strategies that plugins provide.

A plugin that crashes, hangs or exits does no harm to the others. `candidates` finds the plugins. `probing` imports each
one in a process of its own, and `probe_cache` keeps the answers. `hosting`, `starting` and `wire` are this side of such
a process, and `hook_host` is the plugin's side.

The command line asks hooks in such processes too: `guarded`. A program that computes imports its plugins: `admission`.
`catalogue` collects the results. `loading` and `functions` resolve import strings at first use.
"""
