"""How large an answer's message may be where nobody says otherwise."""

from typing import Final

DEFAULT_RESPONSE_BYTES: Final = 64 << 20
"""gRPC's own limit, 4 MiB, is under a long prompt with its log-probabilities."""
