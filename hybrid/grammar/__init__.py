"""Holds answers to a form: compiles it, and says which tokens may come next.

The work is llguidance's, which is imported when the first form is compiled.
"""
