"""A certificate and its private key, which are given together or not at all."""

from pathlib import Path

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown


def check_key_pair(prefix: str, cert: Path | None, key: Path | None) -> None:
    """Refuse one without the other.

    Args:
        prefix: of the names of both options.
        cert: certificate chain (PEM).
        key: its private key (PEM).

    Raises:
        ConfigError: one is missing; names both.
    """
    if cert is not None and key is None:
        given, path, missing = "cert", cert, "key"
    elif key is not None and cert is None:
        given, path, missing = "key", key, "cert"
    else:
        return
    raise ConfigError(
        f"{prefix}{given} is {shown(str(path))}, which needs {prefix}{missing}"
    )
