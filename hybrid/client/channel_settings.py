"""What a channel is made of, and what every call carries."""

from dataclasses import dataclass
from typing import Final

import grpc

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown
from hybrid.wire.loopback import is_loopback

from .client_options import ClientOptions, TlsOptions

_KEEPALIVE: Final = (
    # A long call that says nothing is kept alive through routers that forget silent
    # connections. Servers that know this protocol take a ping every 10 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that comes back is found again by the next retry, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """What ``grpc`` and ``grpc.aio`` take alike."""

    target: str
    credentials: grpc.ChannelCredentials | None
    """``None``: plaintext."""
    options: tuple[tuple[str, int | str], ...]
    metadata: tuple[tuple[str, str], ...]
    """Of every call."""


def channel_settings(
    address: str, options: ClientOptions, token: str | None
) -> ChannelSettings:
    """Put a channel's parts together.

    Args:
        address: ``host:port``.
        options: checked.
        token: of the bearer; ``None``: nobody asks for one.

    Raises:
        ConfigError: the address is none, or the token would be readable on its way.
        OSError: a TLS file cannot be read.
    """
    host, separator, port = address.rpartition(":")
    if not (host and separator and port.isdecimal()):
        raise ConfigError(f"address is {shown(address)}, must be host:port")
    if token is not None and options.tls is None and not options.insecure:
        _check_stays_here(host)
    limit = options.max_message_bytes
    arguments: list[tuple[str, int | str]] = [
        *_KEEPALIVE,
        ("grpc.max_send_message_length", limit),
        ("grpc.max_receive_message_length", limit),
    ]
    if options.tls is not None and options.tls.server_name is not None:
        name = options.tls.server_name
        arguments.append(("grpc.ssl_target_name_override", name))
    return ChannelSettings(
        target=address,
        credentials=None if options.tls is None else _credentials(options.tls),
        options=tuple(arguments),
        metadata=(("authorization", f"Bearer {token}"),) if token else (),
    )


def _check_stays_here(host: str) -> None:
    if not is_loopback(host.strip("[]")):
        raise ConfigError(
            f"the token would go to {shown(host)} in plaintext: give tls, or insecure"
        )


def _credentials(tls: TlsOptions) -> grpc.ChannelCredentials:
    ca, key, certificate = (
        None if path is None else path.read_bytes()
        for path in (tls.ca, tls.key, tls.cert)
    )
    return grpc.ssl_channel_credentials(ca, key, certificate)
