"""``hybrid serve``: one engine, for many clients, until it is told to end."""

import asyncio
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from typer import Exit

from hybrid.scheduler.errors import ConfigError

from .answer import write_now
from .engine_options import EngineOptions, engine_keywords, resume_collection
from .option_groups import expand_option_groups
from .progress import show_progress
from .serve_options import ServeOptions
from .standard_streams import divert_prints, note
from .verbosity import Verbose, start_logging

if TYPE_CHECKING:
    from hybrid.engine_builder import LoadedEngine
    from hybrid.serving.server import Addresses


@expand_option_groups
def serve(
    *,
    server: ServeOptions,
    engine: EngineOptions,
    verbose: Verbose = 0,
) -> None:
    """Serve a model over gRPC and, with --http-port, an OpenAI-compatible API."""
    # A server's events are what its operator has of it.
    start_logging(verbose + 1)
    _check_installed()
    from hybrid.serving.bearer_token import read_tokens  # noqa: PLC0415 - brings grpc
    from hybrid.serving.file_descriptors import (  # noqa: PLC0415 - its neighbour
        raise_descriptor_limit,
    )
    from hybrid.serving.server import run_server  # noqa: PLC0415 - as above

    raise_descriptor_limit()
    config = server.config()
    tokens = read_tokens(server.token_file, os.environ)
    with divert_prints():
        error = asyncio.run(
            run_server(config, tokens, lambda: _load(engine), _announce)
        )
    if error is not None:
        note(f"error: {error}")
        raise Exit(1)


def _check_installed() -> None:
    for module in ("grpc", "grpc_health", "grpc_reflection", "smg_grpc_proto"):
        if find_spec(module) is None:
            raise ConfigError(
                f"hybrid serve needs {module}, which is not installed: "
                "pip install 'hybrid-llm-engine[grpc]'"
            )


def _load(options: EngineOptions) -> "LoadedEngine":
    from hybrid.engine_builder import load_engine  # noqa: PLC0415 - heavy
    from hybrid.engine_config import EngineConfig  # noqa: PLC0415

    with show_progress() as progress:
        config = EngineConfig(**engine_keywords(options))
        loaded = load_engine(config, progress=progress)
    resume_collection()
    return loaded


def _announce(addresses: "Addresses") -> None:
    """Write the one line of stdout: whoever started us may wait for it."""
    found = {
        "grpc": addresses.grpc,
        "http": addresses.http,
        "metrics": addresses.metrics,
    }
    told = [f"{name}={place}" for name, place in found.items() if place is not None]
    write_now(f"ready {' '.join(told)}\n")
