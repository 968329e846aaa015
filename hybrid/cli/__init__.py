"""The command line. Entry points only: configures logging, never imported by others."""
