"""Executors, one folder each; heavy imports stay inside the folder."""
