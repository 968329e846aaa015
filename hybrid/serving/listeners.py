"""Ports: where calls come in, over what transport, and who is let in."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import randbelow
from socket import AF_INET, AF_INET6, create_server
from typing import Any, Final

import grpc

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

from .serve_config import ServeConfig

_OPTIONS: Final = (
    # A port that another process serves is refused, not shared with it.
    ("grpc.so_reuseport", 0),
    # Gateways ping while a long call is silent; by default that ends the connection.
    # Source: vLLM 0.32, its gRPC launcher.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A peer that is gone, or takes no bytes, is found out by pings of ours.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Seen of gRPC 1.85: this is what closes it, and it is 60 s by itself.
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    # More calls wait at their client. A gateway has one connection for all it carries.
    ("grpc.max_concurrent_streams", 4096),
)
_PUBLIC_OPTIONS: Final = (
    # Each connection takes a file descriptor: who says nothing holds none.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 300_000),
)
"""Of ports that others than our own gateway reach."""
_FIRST_PORT: Final = 10_000
_END_PORT: Final = 32_768
"""Linux gives connections ports from here on."""
_PORT_TRIES: Final = 16


@dataclass(frozen=True, slots=True)
class Listener:
    """A gRPC server on one port."""

    server: Any
    """``grpc.aio.Server``, bound and not yet started."""
    host: str
    port: int

    @property
    def address(self) -> str:
        """As clients write it."""
        return join_address(self.host, self.port)


def join_address(host: str, port: int) -> str:
    """Put host and port together, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def find_port(kind: str, host: str, port: int) -> int:
    """Find out whether a port can be had, before a model is loaded for nothing.

    Args:
        kind: ``http`` or ``metrics``: whose options ``..._host`` and ``..._port`` are.
        host: address.
        port: 0: any free one.

    Returns:
        The port, which nobody uses now.

    Raises:
        ConfigError: it cannot be bound.
    """
    for candidate in () if port else _unlikely_ports():
        with suppress(OSError):
            return _try_port(host, candidate)
    try:
        return _try_port(host, port)
    except OSError as error:
        raise ConfigError(
            f"{kind}_host and {kind}_port are {join_address(host, port)}, which cannot "
            f"be bound: {error.strerror or error}"
        ) from error


def _try_port(host: str, port: int) -> int:
    # As servers bind it: one that has just ended leaves the port to the next.
    family = AF_INET6 if ":" in host else AF_INET
    with create_server((host, port), family=family) as probe:
        found: int = probe.getsockname()[1]
        return found


def _unlikely_ports() -> Iterator[int]:
    """Ports that no system hands out by itself.

    One that it does, and that is bound a moment later, may be somebody's by then.
    """
    for _ in range(_PORT_TRIES):
        yield _FIRST_PORT + randbelow(_END_PORT - _FIRST_PORT)


def open_listener(
    config: ServeConfig, handlers: Sequence[Any], interceptors: Sequence[Any]
) -> Listener:
    """Bind the port that clients use.

    Args:
        config: checked.
        handlers: of the methods.
        interceptors: what every call goes through, in order.

    Raises:
        ConfigError: the port cannot be had, or a TLS file does not hold what it must.
        OSError: a TLS file cannot be read.
    """
    server = _make_server(config, handlers, interceptors, _PUBLIC_OPTIONS)
    return _bind(server, config.host, config.port, _credentials(config))


def open_gateway_listener(
    config: ServeConfig, handlers: Sequence[Any], interceptors: Sequence[Any]
) -> Listener:
    """Bind a port for the gateway alone: it speaks neither TLS nor tokens.

    Args:
        config: checked.
        handlers: of the methods.
        interceptors: what every call goes through; none that asks for a token.

    Raises:
        ConfigError: no port can be had.
    """
    return _bind(_make_server(config, handlers, interceptors), "127.0.0.1", 0, None)


def _make_server(
    config: ServeConfig,
    handlers: Sequence[Any],
    interceptors: Sequence[Any],
    options: Sequence[tuple[str, int]] = (),
) -> Any:
    limits = (
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.max_send_message_length", config.max_response_bytes),
    )
    return grpc.aio.server(
        handlers=handlers,
        interceptors=interceptors,
        options=(*_OPTIONS, *options, *limits),
    )


def _bind(server: Any, host: str, port: int, credentials: Any) -> Listener:
    address = join_address(host, port)
    try:
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"host and port are {address}, which cannot be bound: it is in use, not "
            "of this machine, or the TLS certificate does not fit its key"
        ) from error
    return Listener(server, host, bound)


def _credentials(config: ServeConfig) -> Any:
    """Read the TLS files; ``None``: plaintext."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    chain = _read_pem("tls_cert", config.tls_cert, b"CERTIFICATE")
    key = _read_pem("tls_key", config.tls_key, b"PRIVATE KEY")
    root = None
    if config.tls_client_ca is not None:
        root = _read_pem("tls_client_ca", config.tls_client_ca, b"CERTIFICATE")
    return grpc.ssl_server_credentials(
        [(key, chain)],
        root_certificates=root,
        require_client_auth=root is not None,
    )


def _read_pem(option: str, path: Path, label: bytes) -> bytes:
    data = path.read_bytes()
    if b"-----BEGIN " not in data or label + b"-----" not in data:
        raise ConfigError(
            f"{option} is {shown(str(path))}, which holds no PEM {label.decode()}"
        )
    return data
