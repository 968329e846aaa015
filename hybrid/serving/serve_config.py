"""What can be chosen about a server, checked once; secrets are not in here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown
from hybrid.wire.key_pair import check_key_pair
from hybrid.wire.loopback import is_loopback
from hybrid.wire.message_size import DEFAULT_RESPONSE_BYTES

from .gateway_options import check_gateway_metrics, check_gateway_options

DEFAULT_PORT: Final = 50051
LOOPBACK: Final = "127.0.0.1"
DEFAULT_REQUEST_BYTES: Final = 4 << 20
"""gRPC's own limit: a million ids of a large vocabulary. A message is decoded in the
loop that serves everybody, a few milliseconds per MiB."""
MAX_MESSAGE_BYTES: Final = (1 << 31) - 1
"""gRPC counts in int32."""
MAX_TIMEOUT_S: Final = 86400.0
MAX_STREAM_INTERVAL_MS: Final = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The options of ``hybrid serve`` that are not the engine's.

    Raises:
        ConfigError: an option is out of range or contradicts another; names both.
    """

    host: str = LOOPBACK
    """Address of the gRPC port."""
    port: int = DEFAULT_PORT
    """0: any free one."""
    tls_cert: Path | None = None
    """Certificate chain (PEM); ``None``: plaintext."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
    tls_client_ca: Path | None = None
    """Who signs clients' certificates (PEM); ``None``: clients need none."""
    insecure: bool = False
    """Whether others than this machine may come in where TLS, or who they are, is not
    asked for; what is given of both still holds."""
    max_request_bytes: int = DEFAULT_REQUEST_BYTES
    max_response_bytes: int = DEFAULT_RESPONSE_BYTES
    reflection: bool | None = None
    """Whether clients may ask what services there are; ``None``: on loopback."""
    max_requests: int | None = 1024
    """Most requests in the server, running and waiting; ``None``: no limit."""
    max_inflight_tokens: int | None = None
    """Most tokens of all requests in the server; ``None``: no limit."""
    shutdown_timeout_s: float = 30.0
    """How long requests may go on once the server is told to end."""
    stream_interval_ms: float | None = None
    """How long a stream's tokens may be gathered into one message, the first and the
    last apart; 0: not at all. ``None``: longer under load."""
    served_model_name: str | None = None
    """What clients call the model; ``None``: as it was named here."""
    profile_dir: Path | None = None
    """Where clients may have profiles written; ``None``: none are taken."""
    kserve: bool = False
    """Whether the Open Inference Protocol (KServe v2) is served too."""
    metrics_host: str = LOOPBACK
    """Address of the metrics port, which everybody may read who reaches it."""
    metrics_port: int | None = None
    """Port of ``/metrics``, 0 any free one; ``None``: none."""
    otlp_traces_endpoint: str | None = None
    """Collector of OpenTelemetry spans; ``None``: no spans are made."""
    http_host: str = LOOPBACK
    """Address of the HTTP port."""
    http_port: int | None = None
    """Port of the OpenAI-compatible API, 0 any free one; ``None``: no gateway."""
    gateway_options: Mapping[str, str | None] = field(default_factory=dict)
    """Options of the gateway itself, without their dashes; ``None``: a flag."""

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port", "http_port"):
            _check_range(name, getattr(self, name), 0, 65535)
        limits = (1024, MAX_MESSAGE_BYTES)
        _check_range("max_request_size", self.max_request_bytes, *limits)
        _check_range("max_response_size", self.max_response_bytes, *limits)
        for name in ("max_requests", "max_inflight_tokens"):
            _check_range(name, getattr(self, name), 1, None)
        interval_ms = self.stream_interval_ms
        _check_range("stream_interval", interval_ms, 0, MAX_STREAM_INTERVAL_MS)
        _check_range("shutdown_timeout", self.shutdown_timeout_s, 0, MAX_TIMEOUT_S)
        texts = ("host", "http_host", "metrics_host", "served_model_name")
        for name in (*texts, "otlp_traces_endpoint"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} is empty")
        self._check_tls()
        self._check_together()
        check_gateway_options(self.gateway_options)

    def _check_together(self) -> None:
        """Refuse what would have no effect, and an address that is none."""
        if self.gateway_options and self.http_port is None:
            raise ConfigError("gateway_option needs http_port: without it, no gateway")
        for kind in ("http", "metrics"):
            host = getattr(self, f"{kind}_host")
            if getattr(self, f"{kind}_port") is None and host != LOOPBACK:
                raise ConfigError(f"{kind}_host is {shown(host)}: it needs {kind}_port")
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not urlsplit(endpoint).hostname:
            raise ConfigError(
                f"otlp_traces_endpoint is {shown(endpoint)}, must be a URL such as "
                "http://collector:4317"
            )

    @property
    def is_public(self) -> bool:
        """Whether other machines may reach the gRPC port."""
        return not is_loopback(self.host)

    @property
    def has_reflection(self) -> bool:
        """Whether clients may ask what services there are."""
        return not self.is_public if self.reflection is None else self.reflection

    def check_exposure(self, *, has_tokens: bool) -> None:
        """Refuse to let strangers in, or listeners on the way, by accident.

        Raises:
            ConfigError: other machines reach a port where no TLS is spoken, or where
                they need not say who they are, and ``insecure`` is not set.
        """
        if self.insecure:
            return
        knows_clients = has_tokens or self.tls_client_ca is not None
        self._check_port("host", knows_clients, "a token, tls_client_ca")
        if self.http_port is not None:
            # The gateway asks no client for a certificate.
            self._check_port("http_host", has_tokens, "a token")
            check_gateway_metrics(self.gateway_options)
        if self.metrics_port is not None and not is_loopback(self.metrics_host):
            raise ConfigError(
                f"metrics_host is {shown(self.metrics_host)}, whose port other "
                "machines read without TLS or token: give a loopback address, or "
                "insecure"
            )

    def _check_port(self, name: str, knows_clients: bool, identities: str) -> None:
        host = getattr(self, name)
        if is_loopback(host):
            return
        if self.tls_cert is None:
            raise ConfigError(
                f"{name} is {shown(host)}, which other machines reach in plaintext: "
                "give tls_cert and tls_key, or insecure"
            )
        if not knows_clients:
            raise ConfigError(
                f"{name} is {shown(host)}, which other machines reach whoever they "
                f"are: give {identities}, or insecure"
            )

    def _check_tls(self) -> None:
        check_key_pair("tls_", self.tls_cert, self.tls_key)
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError(
                f"tls_client_ca is {shown(str(self.tls_client_ca))}, which needs "
                "tls_cert and tls_key"
            )


def _check_range(
    name: str, value: float | None, low: float, high: float | None
) -> None:
    if value is None:
        return
    if math.isnan(value) or value < low or (high is not None and value > high):
        limit = f"at least {low:g}" if high is None else f"from {low:g} to {high:.15g}"
        raise ConfigError(f"{name} is {shown(value)}, must be {limit}")
