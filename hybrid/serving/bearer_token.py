"""Who may come in: a shared secret, sent as ``authorization: Bearer ...``."""

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

from .denial import deny

TOKEN_VARIABLE: Final = "HYBRID_SERVE_TOKEN"
HEALTH_PREFIX: Final = "/grpc.health.v1.Health/"
"""Load balancers ask for health, and have no token."""


def read_tokens(path: Path | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Collect the tokens that are let in; empty: everybody is.

    Several are separated by white space, so that an old one works on beside a new one.

    Args:
        path: a file of tokens; ``None``: the variable ``HYBRID_SERVE_TOKEN``.
        environ: of the process.

    Raises:
        ConfigError: there is a file or a variable and no usable token in it; the
            message holds no token.
        OSError: the file cannot be read.
    """
    if path is not None:
        origin, text = f"token_file {shown(str(path))}", path.read_text("utf-8")
    elif TOKEN_VARIABLE in environ:
        origin, text = TOKEN_VARIABLE, environ[TOKEN_VARIABLE]
    else:
        return ()
    tokens = tuple(text.split())
    if not tokens:
        raise ConfigError(f"{origin} holds no token")
    # Metadata carries nothing else; such a token would lock everybody out.
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise ConfigError(f"{origin} holds a token with characters other than ASCII")
    return tokens


class BearerTokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Lets calls in that bring one of the tokens, and health checks."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens: Final = tuple(token.encode() for token in tokens)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Hand a call on, or answer UNAUTHENTICATED."""
        if details.method.startswith(HEALTH_PREFIX):
            return await continuation(details)
        sent = [v for k, v in details.invocation_metadata if k == "authorization"]
        if len(sent) == 1 and self._is_known(sent[0]):
            return await continuation(details)
        return deny(
            grpc.StatusCode.UNAUTHENTICATED,
            "the call needs the metadata authorization: Bearer TOKEN, and one of the "
            "server's tokens in it",
        )

    def _is_known(self, authorization: str | bytes) -> bool:
        text = authorization if isinstance(authorization, str) else ""
        scheme, _, token = text.partition(" ")
        # Every token is compared, and each in constant time: how long it took tells
        # nothing of which characters were right.
        known = [hmac.compare_digest(token.encode(), other) for other in self._tokens]
        return scheme.lower() == "bearer" and any(known)
