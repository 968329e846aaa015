"""The options that put a running server in an engine's place."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import BadParameter, Option

from hybrid.scheduler.errors import ConfigError

from .engine_options import EngineOptions, open_engine
from .remote_llm import RemoteLLM

if TYPE_CHECKING:
    from hybrid import LLM
    from hybrid.client import ClientOptions

_SERVER = "Server"


def _option(*names: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002 - typer's own word
    return Option(*names, help=help, metavar=metavar, rich_help_panel=_SERVER)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Where the server is, and fields of ``ClientOptions``."""

    connect: Annotated[
        str | None,
        _option(
            "--connect",
            metavar="host:port",
            help="Ask a server (`hybrid serve`) instead of loading a model.",
        ),
    ] = None
    tls: Annotated[
        bool,
        _option("--tls", help="Speak TLS, trusting the system's authorities."),
    ] = False
    tls_ca: Annotated[
        Path | None,
        _option("--tls-ca", help="TLS, and who must have signed its certificate."),
    ] = None
    tls_cert: Annotated[
        Path | None,
        _option("--tls-cert", help="TLS, and our own certificate, a PEM file."),
    ] = None
    tls_key: Annotated[
        Path | None, _option("--tls-key", help="Its private key, a PEM file.")
    ] = None
    token_file: Annotated[
        Path | None,
        _option("--token-file", help="Our token; else HYBRID_CLIENT_TOKEN."),
    ] = None
    insecure: Annotated[
        bool,
        _option("--insecure", help="Let the token travel to others in plaintext."),
    ] = False

    def options(self) -> "ClientOptions":
        """Check the options.

        Raises:
            ConfigError: names the option and its value.
        """
        from hybrid.client import ClientOptions, TlsOptions  # noqa: PLC0415 - brings grpc

        tls = None
        if self.tls or self.tls_ca or self.tls_cert or self.tls_key:
            tls = TlsOptions(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key)
        return ClientOptions(
            tls=tls, token_file=self.token_file, insecure=self.insecure
        )


@contextmanager
def open_llm(
    engine: EngineOptions, server: ConnectOptions
) -> Iterator["LLM | RemoteLLM"]:
    """Load a model, or connect to who has it; closes at the end.

    Raises:
        BadParameter: options of both, or a server's without ``--connect``.
        HybridError: the model cannot be loaded, or the server does not answer.
    """
    if server.connect is None:
        _refuse(server, "needs --connect")
        with open_engine(engine) as llm:
            yield llm
        return
    _refuse(engine, "is for an engine of our own: with --connect the server has it")
    try:
        options = server.options()
    except ImportError as error:
        raise ConfigError(
            f"--connect needs {error.name}, which is not installed: "
            "pip install 'hybrid-llm-engine[grpc]'"
        ) from error
    from hybrid.client import HybridClient  # noqa: PLC0415 - as above

    with HybridClient(server.connect, options) as client:
        yield RemoteLLM(client)


def _refuse(group: EngineOptions | ConnectOptions, reason: str) -> None:
    """Raise for the first option that is given."""
    hints = get_type_hints(type(group), include_extras=True)
    for field in dataclasses.fields(group):
        if getattr(group, field.name) != field.default:
            (option,) = hints[field.name].__metadata__
            # Typer's first argument is a default where it is no annotation.
            name = option.default.partition("/")[0]
            raise BadParameter(f"{name} {reason}")
