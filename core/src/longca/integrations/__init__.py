"""Integrations: LongCA inside the tools that people train with. Each needs its tool, and an extra of longca-core."""
