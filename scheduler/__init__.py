"""Decides what runs: requests, step plans, block pool. No tensor, no model, no text."""
