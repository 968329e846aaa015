"""All ports of a server, and the health that they tell."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Self

from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from .bearer_token import BearerTokenInterceptor
from .listeners import Listener, open_gateway_listener, open_listener
from .serve_config import ServeConfig
from .service_table import ServiceTable

STOP_GRACE_S: Final = 5.0
"""For calls that have been aborted and must be told so."""
IDLE_GRACE_S: Final = 0.5
"""For last messages that are under way, where only endless streams are left: those of
health and of KV events."""


class FrontDoor:
    """Open from the start of the server; says NOT_SERVING until there is an engine."""

    def __init__(
        self,
        config: ServeConfig,
        tokens: Sequence[str],
        service_names: Sequence[str],
        interceptors: Sequence[Any],
    ) -> None:
        self._names: Final = ("", *service_names)
        self._health: Final = health_aio.HealthServicer()
        self.services: Final = ServiceTable()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.services)
        if config.has_reflection:
            shown = (*service_names, HEALTH_SERVICE, reflection.SERVICE_NAME)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
                reflection.aio.ReflectionServicer(shown), self.services
            )
        closed = [BearerTokenInterceptor(tokens)] if tokens else []
        handlers = [self.services]
        self._listener: Final = open_listener(
            config, handlers, [*closed, *interceptors]
        )
        self.gateway_listener: Final[Listener | None] = (
            None
            if config.http_port is None
            else open_gateway_listener(config, handlers, interceptors)
        )
        """For the gateway alone; ``None``: there is none."""

    @classmethod
    async def open(
        cls,
        config: ServeConfig,
        tokens: Sequence[str],
        service_names: Sequence[str],
        interceptors: Sequence[Any] = (),
    ) -> Self:
        """Open the ports.

        Args:
            config: checked.
            tokens: what clients must bring one of; empty: nothing.
            service_names: full names of the services that will be there.
            interceptors: what each call goes through that was let in.

        Raises:
            ConfigError: a port cannot be had, or a TLS file is not what it should be.
            OSError: a TLS file cannot be read.
        """
        door = cls(config, tokens, service_names, interceptors)
        await door._tell(HealthCheckResponse.NOT_SERVING)
        for listener in door._listeners():
            await listener.server.start()
        return door

    @property
    def address(self) -> str:
        """Where clients find the services."""
        return self._listener.address

    async def set_ready(self) -> None:
        """Let calls through to the services."""
        self.services.is_open = True
        await self._tell(HealthCheckResponse.SERVING)

    async def set_ending(self) -> None:
        """Tell that the server ends; calls still go through."""
        await self._health.enter_graceful_shutdown()

    async def close(self, grace_s: float = STOP_GRACE_S) -> None:
        """Close the ports; what still runs after ``grace_s`` is cancelled."""
        stops = (each.server.stop(grace_s) for each in self._listeners())
        await asyncio.gather(*stops)

    def _listeners(self) -> tuple[Listener, ...]:
        if self.gateway_listener is None:
            return (self._listener,)
        return (self._listener, self.gateway_listener)

    async def _tell(self, status: int) -> None:
        for name in self._names:
            await self._health.set(name, status)
