"""Whether requests are traced; imports OpenTelemetry only if they are."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybrid.scheduler import ConfigError

if TYPE_CHECKING:
    from .tracing import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def start_tracing(
    endpoint: str | None, environment: Mapping[str, str]
) -> "Tracing | None":
    """Trace if an endpoint is given, or named by OpenTelemetry's own variables.

    Args:
        endpoint: of an OTLP collector that speaks gRPC, such as
            ``http://localhost:4317``; ``None``: the environment's.
        environment: of this process; OpenTelemetry itself reads the rest there.

    Returns:
        ``None`` if nothing asks for traces, or ``OTEL_SDK_DISABLED`` is ``true``.

    Raises:
        ConfigError: the extra is not installed.
    """
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if endpoint is None and (is_disabled or not any(map(environment.get, _ENDPOINTS))):
        return None
    try:
        from .tracing import Tracing  # noqa: PLC0415 - an extra, imported if wanted
    except ImportError as error:
        raise ConfigError(
            f"requests are to be traced, which needs {error.name}: "
            "pip install 'hybrid-llm-engine[tracing]'"
        ) from error
    return Tracing.to_collector(endpoint)
