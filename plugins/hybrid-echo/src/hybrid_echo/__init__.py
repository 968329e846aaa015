"""The smallest complete plugin: an executor and a scheduling policy."""
