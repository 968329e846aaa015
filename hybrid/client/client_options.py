"""How a client reaches its server: transport, identity, patience, limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown
from hybrid.wire.bearer_tokens import read_bearer_tokens
from hybrid.wire.key_pair import check_key_pair
from hybrid.wire.message_size import DEFAULT_RESPONSE_BYTES

from .retry import RetryPolicy

TOKEN_VARIABLE: Final = "HYBRID_CLIENT_TOKEN"
INFO_TIMEOUT_S: Final = 30.0
"""For an answer of one small message."""
TOKENIZER_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Files in PEM.

    Raises:
        ConfigError: a certificate without its key, or the other way round.
    """

    ca: Path | None = None
    """Whose signature a server's certificate must have; ``None``: the system's."""
    cert: Path | None = None
    """The client's own certificate, for a server that asks for one."""
    key: Path | None = None
    """Its private key."""
    server_name: str | None = None
    """What the server's certificate says, where that is not the address's host."""

    def __post_init__(self) -> None:
        """Check that the two halves of an identity are there."""
        check_key_pair("tls.", self.cert, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The same for both clients.

    Raises:
        ConfigError: a value is outside its range.
    """

    tls: TlsOptions | None = None
    """``None``: plaintext."""
    token_file: Path | None = None
    """Holds the bearer token; ``None``: ``HYBRID_CLIENT_TOKEN``, if that is set."""
    insecure: bool = False
    """Let the token travel to another machine in plaintext."""
    timeout_s: float | None = None
    """For one answer, retries included; ``None``: as long as it takes."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_message_bytes: int = DEFAULT_RESPONSE_BYTES
    """Of one message, either way; the server has its own limits."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_timeout(self.timeout_s)
        if self.max_message_bytes < 1:
            raise ConfigError(
                f"max_message_bytes is {self.max_message_bytes}, must be 1 or more"
            )


def check_timeout(timeout_s: float | None) -> None:
    """Refuse what is no length of time.

    Raises:
        ConfigError: it is not above 0.
    """
    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise ConfigError(f"timeout_s is {timeout_s}, must be above 0")


def read_token(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """Find the bearer token; ``None``: there is none.

    Args:
        path: a file that holds it; ``None``: ``HYBRID_CLIENT_TOKEN``.
        environ: of the process.

    Raises:
        ConfigError: there is a file or a variable without one usable token in it; the
            message holds no token.
        OSError: the file cannot be read.
    """
    tokens = read_bearer_tokens(path, TOKEN_VARIABLE, environ)
    if len(tokens) > 1:
        origin = TOKEN_VARIABLE if path is None else f"token_file {shown(str(path))}"
        raise ConfigError(f"{origin} holds {len(tokens)} tokens, must hold one")
    return tokens[0] if tokens else None
