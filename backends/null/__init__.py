"""The deterministic executor that needs no torch: a hash over the paged cache."""
