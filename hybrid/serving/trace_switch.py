"""Whether requests are traced; imports OpenTelemetry only if they are."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from hybrid.scheduler import ConfigError
from hybrid.scheduler.shown_value import shown

if TYPE_CHECKING:
    from .tracing import Tracing

_ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
)


def start_tracing(
    endpoint: str | None, environment: Mapping[str, str]
) -> "Tracing | None":
    """Trace if an endpoint is given, or named by OpenTelemetry's own variables.

    Args:
        endpoint: of an OTLP collector that speaks gRPC, such as
            ``http://localhost:4317``; ``None``: the environment's.
        environment: of this process; OpenTelemetry itself reads the rest there.

    Returns:
        ``None`` if nothing asks for traces, or ``OTEL_SDK_DISABLED`` is ``true``, or
        ``OTEL_TRACES_EXPORTER`` is ``none``.

    Raises:
        ConfigError: the environment's endpoint speaks another protocol, or the extra is
            not installed.
    """
    if not any((endpoint, *map(environment.get, _ENDPOINTS))):
        return None
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    if endpoint is None:
        _check_protocol(environment)
    try:
        from .tracing import Tracing  # noqa: PLC0415 - an extra, imported if wanted
    except ImportError as error:
        raise ConfigError(
            f"requests are to be traced, which needs {error.name}: "
            "pip install 'hybrid-llm-engine[tracing]'"
        ) from error
    return Tracing.to_collector(endpoint)


def _check_protocol(environment: Mapping[str, str]) -> None:
    """Refuse the first protocol that is named, if it is not ours."""
    for name in _PROTOCOLS:
        protocol = environment.get(name)
        if protocol == "grpc":
            return
        if protocol:
            raise ConfigError(
                f"{name} is {shown(protocol)}, must be grpc: spans are sent so"
            )
