"""Deprecated: integrations are distributions of their own, such as `longca_transformers`."""
