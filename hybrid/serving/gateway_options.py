"""Which options of the gateway its user may set; the rest are the server's own."""

from collections.abc import Mapping
from typing import Final

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown
from hybrid.wire.loopback import is_loopback

_OURS: Final[Mapping[str, str]] = {
    "host": "use http_host",
    "port": "use http_port",
    "tls-cert-path": "use tls_cert",
    "tls-key-path": "use tls_key",
    "api-key": "use token_file",
    "tenant-api-key": "use token_file",
    "control-plane-api-keys": "use token_file",
    "shutdown-grace-period-secs": "use shutdown_timeout",
    "worker-urls": "its worker is this server's engine",
    # Ports that would be opened past the check of ``http_host``.
    "enable-mesh": "this server runs one gateway, and no mesh",
    "rdma-listen-ip": "executors take no images",
}
_METRICS_HOST: Final = "prometheus-host"


def check_gateway_options(options: Mapping[str, str | None]) -> None:
    """Refuse what would undo what this server has checked.

    Args:
        options: by name, without dashes.

    Raises:
        ConfigError: one is the server's own, or may be taken for it.
    """
    for name in options:
        # It takes any beginning that is no other option's for the whole name.
        for ours, advice in _OURS.items():
            if ours.startswith(name):
                raise ConfigError(
                    f"gateway_option is {shown(name)}, but {ours} is set by this "
                    f"server: {advice}"
                )
        if _METRICS_HOST.startswith(name) and name != _METRICS_HOST:
            raise ConfigError(
                f"gateway_option is {shown(name)}, must be the whole name: "
                f"{_METRICS_HOST}"
            )


def check_gateway_metrics(options: Mapping[str, str | None]) -> None:
    """Refuse to show the gateway's own metrics to other machines.

    Raises:
        ConfigError: ``prometheus-host`` is no loopback address.
    """
    host = options.get(_METRICS_HOST)
    if host is not None and not is_loopback(host):
        raise ConfigError(
            f"gateway_option {_METRICS_HOST} is {shown(host)}, whose port other "
            "machines read without TLS or token: give a loopback address, or insecure"
        )
