"""The engine as a service: one host, several protocols in front of it."""
