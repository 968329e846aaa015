"""The services of all ports; they come to be while health is already answered."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc

from .bearer_token import HEALTH_PREFIX
from .denial import deny
from .request_decoding import with_statuses


class ServiceTable(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Finds the handler of a method; used as the one handler of every gRPC server.

    gRPC takes services only before it starts, and we answer health checks before there
    is an engine to make services of. The generated ``add_..._to_server`` functions take
    a table in place of a server.
    """

    def __init__(self) -> None:
        self._handlers: Final[list[Any]] = []
        self.is_open = False
        """Whether calls other than health checks are let through."""

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Take a service in; called by generated code."""
        self._handlers.extend(handlers)

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, Any]
    ) -> None:
        """Do nothing: the same methods come as generic handlers."""

    def service(self, details: Any) -> Any:
        """Return the handler of a method; ``None``: there is none, UNIMPLEMENTED."""
        if not self.is_open and not details.method.startswith(HEALTH_PREFIX):
            return deny(grpc.StatusCode.UNAVAILABLE, "the server is starting")
        found = (handler.service(details) for handler in self._handlers)
        method = next((handler for handler in found if handler is not None), None)
        return None if method is None else with_statuses(method)
