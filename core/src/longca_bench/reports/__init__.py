"""Reports: what was measured, and the masks it was measured on, as tables and pictures."""
