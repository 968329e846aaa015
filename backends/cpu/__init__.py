"""Quantised models in our own kernels, compiled once and mapped ever after."""
