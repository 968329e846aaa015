"""The options that make a server of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown

if TYPE_CHECKING:
    from hybrid.serving.serve_config import ServeConfig

_SERVER = "Server"
_HTTP = "HTTP"
_WATCHING = "Metrics and traces"


def _option(
    *names: str,
    help: str,  # noqa: A002 - typer's own word
    panel: str = _SERVER,
    metavar: str | None = None,
) -> Any:
    return Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Fields of ``ServeConfig``, which checks them, and where the tokens are."""

    host: Annotated[
        str, _option("--host", help="Address to serve on; 0.0.0.0: all.")
    ] = "127.0.0.1"
    port: Annotated[
        int, _option("--port", help="Port of the gRPC services; 0: any free one.")
    ] = 50051
    http_port: Annotated[
        int | None,
        _option(
            "--http-port",
            panel=_HTTP,
            help="Port of the OpenAI-compatible API; without it there is none.",
        ),
    ] = None
    http_host: Annotated[
        str, _option("--http-host", panel=_HTTP, help="Address of the HTTP port.")
    ] = "127.0.0.1"
    gateway_options: Annotated[
        list[str] | None,
        _option(
            "--gateway-option",
            panel=_HTTP,
            metavar="name[=value]",
            help="An option of the gateway (`smg launch --help`); may be given again.",
        ),
    ] = None
    served_model_name: Annotated[
        str | None,
        _option("--served-model-name", help="What clients call the model."),
    ] = None
    profile_dir: Annotated[
        Path | None,
        _option("--profile-dir", help="Let clients have profiles written there."),
    ] = None
    kserve: Annotated[
        bool, _option("--kserve", help="Serve KServe's inference protocol too.")
    ] = False
    metrics_port: Annotated[
        int | None,
        _option(
            "--metrics-port", panel=_WATCHING, help="Port of Prometheus' /metrics."
        ),
    ] = None
    metrics_host: Annotated[
        str, _option("--metrics-host", panel=_WATCHING, help="Its address.")
    ] = "127.0.0.1"
    otlp_traces_endpoint: Annotated[
        str | None,
        _option(
            "--otlp-traces-endpoint",
            panel=_WATCHING,
            help="URL of a collector that OpenTelemetry spans are sent to.",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, _option("--tls-cert", help="Certificate chain, a PEM file.")
    ] = None
    tls_key: Annotated[
        Path | None, _option("--tls-key", help="Its private key, a PEM file.")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        _option("--tls-client-ca", help="Who must have signed clients' certificates."),
    ] = None
    token_file: Annotated[
        Path | None,
        _option("--token-file", help="Tokens of clients; else HYBRID_SERVE_TOKEN."),
    ] = None
    insecure: Annotated[
        bool, _option("--insecure", help="Let other machines in without TLS or token.")
    ] = False
    reflection: Annotated[
        bool | None,
        _option(
            "--reflection/--no-reflection",
            help="Whether clients may list the services; on where only this machine "
            "is served.",
        ),
    ] = None
    max_requests: Annotated[
        int, _option("--max-requests", help="Most requests, running and waiting.")
    ] = 1024
    max_inflight_tokens: Annotated[
        int | None,
        _option("--max-inflight-tokens", help="Most tokens of all those requests."),
    ] = None
    max_request_size: Annotated[
        str, _option("--max-request-size", help="Most bytes of a message to us.")
    ] = "4MiB"
    max_response_size: Annotated[
        str, _option("--max-response-size", help="Most bytes of a message from us.")
    ] = "64MiB"
    stream_interval: Annotated[
        str,
        _option(
            "--stream-interval",
            metavar="MS",
            help="Milliseconds over which a stream's tokens may be gathered; 0: none; "
            "auto: 50 where 8 streams run.",
        ),
    ] = "auto"
    shutdown_timeout: Annotated[
        float,
        _option(
            "--shutdown-timeout", help="Seconds for requests to end after SIGTERM."
        ),
    ] = 30.0

    def config(self) -> "ServeConfig":
        """Check the options.

        Raises:
            ConfigError: names the option and its value.
        """
        from hybrid.serving.serve_config import ServeConfig  # noqa: PLC0415 - as needed

        return ServeConfig(
            host=self.host,
            port=self.port,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
            insecure=self.insecure,
            max_request_bytes=_parse_size("max_request_size", self.max_request_size),
            max_response_bytes=_parse_size("max_response_size", self.max_response_size),
            reflection=self.reflection,
            max_requests=self.max_requests,
            max_inflight_tokens=self.max_inflight_tokens,
            stream_interval_ms=_parse_interval(self.stream_interval),
            shutdown_timeout_s=self.shutdown_timeout,
            served_model_name=self.served_model_name,
            kserve=self.kserve,
            profile_dir=self.profile_dir,
            metrics_host=self.metrics_host,
            metrics_port=self.metrics_port,
            otlp_traces_endpoint=self.otlp_traces_endpoint,
            http_host=self.http_host,
            http_port=self.http_port,
            gateway_options=_parse_gateway_options(self.gateway_options or ()),
        )


def _parse_size(name: str, text: str) -> int:
    from hybrid.engine_config import parse_bytes  # noqa: PLC0415 - brings pydantic along

    try:
        return int(str(parse_bytes(text)))
    except ValueError as error:
        raise ConfigError(f"{name} is {shown(text)}: {error}") from None


def _parse_interval(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"stream_interval is {shown(text)}, must be milliseconds, or auto"
        ) from None


def _parse_gateway_options(assignments: Sequence[str]) -> dict[str, str | None]:
    parsed: dict[str, str | None] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not name:
            raise ConfigError(
                f"gateway_option is {shown(assignment)}, must be name=value, or a name"
            )
        parsed[name.removeprefix("--")] = value if separator else None
    return parsed
