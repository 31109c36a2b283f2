"""Discovery: from entry points to a catalogue of what plugins provide, whatever they do when they are imported.

`candidates` finds them, `probing` (with `probe` and `probe_cache`) asks in another process whether they can be
imported, `admission` imports them and asks their hooks, `catalogue` collects, and `loading` resolves import strings at
first use.
"""
