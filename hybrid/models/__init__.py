"""Finds models: known names, the cache, fetching."""
