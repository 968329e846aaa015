"""Where bearer tokens are read from: a file or a variable, never a command line."""

from collections.abc import Mapping
from pathlib import Path

from hybrid.scheduler.errors import ConfigError
from hybrid.scheduler.shown_value import shown


def read_bearer_tokens(
    path: Path | None, variable: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Collect tokens, which white space separates.

    Args:
        path: a file of tokens; ``None``: the variable.
        variable: name of one in ``environ``.
        environ: of the process.

    Returns:
        One or more; none: there is neither file nor variable.

    Raises:
        ConfigError: there is a file or a variable and no usable token in it; the
            message holds no token.
        OSError: the file cannot be read.
    """
    if path is not None:
        origin, text = f"token_file {shown(str(path))}", path.read_text("utf-8")
    elif variable in environ:
        origin, text = variable, environ[variable]
    else:
        return ()
    tokens = tuple(text.split())
    if not tokens:
        raise ConfigError(f"{origin} holds no token")
    # Metadata carries nothing else; such a token would lock everybody out.
    if not all(token.isascii() and token.isprintable() for token in tokens):
        raise ConfigError(f"{origin} holds a token with characters other than ASCII")
    return tokens
