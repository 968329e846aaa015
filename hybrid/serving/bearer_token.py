"""Who may come in: a shared secret, sent as ``authorization: Bearer ...``."""

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from hybrid.wire.bearer_tokens import read_bearer_tokens

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
        ConfigError: there is a file or a variable and no usable token in it.
        OSError: the file cannot be read.
    """
    return read_bearer_tokens(path, TOKEN_VARIABLE, environ)


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
