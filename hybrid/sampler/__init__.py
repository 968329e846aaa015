"""Turns logits into tokens: one meaning for all executors. numpy only."""
