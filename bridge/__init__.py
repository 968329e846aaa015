"""Translates ids to addresses: layouts, packed batches, block tables."""
