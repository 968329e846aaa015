"""The server within this process: what it leaves behind when its start fails."""

import asyncio

import pytest

from hybrid.engine_builder import LoadedEngine, load_engine
from hybrid.engine_config import EngineConfig
from hybrid.scheduler.errors import EngineClosed
from hybrid.serving.serve_config import ServeConfig
from hybrid.serving.served_model import ServedModel
from hybrid.serving.server import Addresses, run_server
from tests.serving.signal_stand import kept_signals


def unexpected(addresses: Addresses) -> None:
    """Fail a test: the server is not to become ready."""
    raise AssertionError(addresses)


def test_a_model_that_cannot_be_described_leaves_no_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error comes out, and what was loaded is freed."""

    def of(_: LoadedEngine, **__: object) -> ServedModel:
        raise LookupError("nothing is known")

    monkeypatch.setattr(ServedModel, "of", of)
    loaded = load_engine(EngineConfig(executor="null"))

    async def main() -> None:
        async with asyncio.timeout(60):
            await run_server(ServeConfig(port=0), [], lambda: loaded, unexpected)

    with kept_signals(), pytest.raises(LookupError, match="nothing is known"):
        asyncio.run(main())
    with pytest.raises(EngineClosed):
        loaded.engine.add_request("late", [1, 2, 3])
