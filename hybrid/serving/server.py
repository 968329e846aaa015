"""A server from its first open port to its last closed one.

    ports open, NOT_SERVING -> engine loads -> services, SERVING -> gateway -> announced
    told to end -> NOT_SERVING -> requests end, or are aborted -> ports close -> engine

Health is answered throughout; whatever fails on the way takes the rest down in order.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc

from hybrid.async_engine import AsyncHybridEngine
from hybrid.engine_builder import LoadedEngine
from hybrid.scheduler.errors import ConfigError

from .admission import AdmissionLimits
from .engine_host import EngineHost
from .front_door import IDLE_GRACE_S, STOP_GRACE_S, FrontDoor
from .gateway import Gateway, GatewayFailed, check_gateway
from .kserve_service import add_kserve
from .listeners import find_port, join_address
from .metrics_server import MetricsServer
from .serve_config import ServeConfig
from .served_model import ServedModel
from .serving_metrics import ServingMetrics
from .shutdown import Ending
from .trace_switch import start_tracing
from .vllm_service import VllmEngineService

if TYPE_CHECKING:
    from .tracing import Tracing

ENGINE_TIMEOUT_S: Final = 10.0
"""For the step that runs when all requests have ended; an executor that takes longer is
left, for the process ends anyway."""
VLLM_SERVICE: Final[str] = vllm_engine_pb2.DESCRIPTOR.services_by_name[
    "VllmEngine"
].full_name


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server that is ready can be reached."""

    grpc: str
    http: str | None
    """Of the OpenAI-compatible API; ``None``: it is not served."""
    metrics: str | None
    """Of ``/metrics``; ``None``: it is not served."""


async def run_server(
    config: ServeConfig,
    tokens: Sequence[str],
    load: Callable[[], LoadedEngine],
    announce: Callable[[Addresses], None],
) -> str | None:
    """Serve until a signal comes, or a part fails.

    Args:
        config: checked.
        tokens: what clients must bring one of; empty: nothing.
        load: makes the engine; called in a thread.
        announce: told where the server is, once it is ready.

    Returns:
        What failed, clients having been told; ``None``: it was told to end.

    Raises:
        HybridError: it could not start, or the engine does not stop.
        OSError: a file that an option names cannot be read.
    """
    config.check_exposure(has_tokens=bool(tokens))
    config = _check_parts(config)
    tracing = start_tracing(config.otlp_traces_endpoint, os.environ)
    async with AsyncExitStack() as parts:
        if tracing is not None:
            parts.push_async_callback(tracing.close)
        ending = parts.enter_context(Ending())
        door = await FrontDoor.open(
            config, tokens, (VLLM_SERVICE,), _interceptors(tracing)
        )
        parts.push_async_callback(door.close)
        loaded = await _load(load, ending)
        if loaded is not None:
            server = _Server(config, tokens, door, ending, tracing)
            await server.serve(loaded, announce)
    return ending.error


def _interceptors(tracing: "Tracing | None") -> list[Any]:
    """What takes a call's parent span from its metadata."""
    if tracing is None:
        return []
    from .tracing import TraceContextInterceptor  # noqa: PLC0415 - an extra

    return [TraceContextInterceptor()]


def _check_parts(config: ServeConfig) -> ServeConfig:
    """Find out what is missing before a model is loaded; settle the gateway's port."""
    if config.metrics_port is not None:
        find_port("metrics", config.metrics_host, config.metrics_port)
    if config.http_port is None:
        return config
    check_gateway()
    port = find_port("http", config.http_host, config.http_port)
    return replace(config, http_port=port)


async def _load(
    load: Callable[[], LoadedEngine], ending: Ending
) -> LoadedEngine | None:
    """Load beside the loop, which answers health checks; ``None``: told to end."""
    future: Future[LoadedEngine] = Future()
    # From here on nobody can cancel it, so the thread may always settle it.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(load())
        except BaseException as error:  # noqa: BLE001 - raised again in the loop
            future.set_exception(error)

    # A daemon: who is told to end while a model loads does not wait for it.
    threading.Thread(target=run, name="hybrid-load", daemon=True).start()
    loaded = asyncio.wrap_future(future)
    await ending.wait_or(loaded)
    if loaded.done():
        return loaded.result()
    loaded.cancel()
    return None


class _Server:
    """What runs between the loading of an engine and its end."""

    def __init__(
        self,
        config: ServeConfig,
        tokens: Sequence[str],
        door: FrontDoor,
        ending: Ending,
        tracing: "Tracing | None",
    ) -> None:
        self._config: Final = config
        self._tokens: Final = tokens
        self._door: Final = door
        self._ending: Final = ending
        self._tracing: Final = tracing

    async def serve(
        self, loaded: LoadedEngine, announce: Callable[[Addresses], None]
    ) -> None:
        """Serve an engine until the server is to end; close the engine."""
        config = self._config
        limits = AdmissionLimits(
            max_requests=config.max_requests, max_tokens=config.max_inflight_tokens
        )
        interval_ms = config.stream_interval_ms
        engine = AsyncHybridEngine(
            loaded.engine,
            stream_interval_s=None if interval_ms is None else interval_ms / 1000,
        )
        async with AsyncExitStack() as parts:
            # First: whatever fails from here on, the engine is closed.
            parts.push_async_callback(engine.close, ENGINE_TIMEOUT_S)
            model = ServedModel.of(loaded, name=config.served_model_name)
            if config.http_port is not None and model.tokenizer is None:
                raise ConfigError(
                    f"http_port is {config.http_port}, which needs a model with a "
                    f"tokenizer: {model.name} has none"
                )
            host = EngineHost(engine, model, limits)
            watch = asyncio.create_task(self._watch(engine))
            parts.callback(watch.cancel)
            metrics = await self._observe(host, parts)
            await self._run(host, metrics, announce)

    async def _observe(
        self, host: EngineHost, observers: AsyncExitStack
    ) -> MetricsServer | None:
        """Set up who counts and traces requests, to be taken down with ``observers``.

        Returns:
            Who tells the numbers; ``None``: nobody does.
        """
        config = self._config
        if self._tracing is not None:
            host.watchers.append(self._tracing.watcher(host.model))
        if config.metrics_port is None:
            return None
        server = await MetricsServer.start(
            ServingMetrics(host).registry,
            port=config.metrics_port,
            host=config.metrics_host,
        )
        observers.push_async_callback(server.close)
        return server

    async def _run(
        self,
        host: EngineHost,
        metrics: MetricsServer | None,
        announce: Callable[[Addresses], None],
    ) -> None:
        door, ending = self._door, self._ending
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(
            VllmEngineService(host, self._config.profile_dir), door.services
        )
        if self._config.kserve:
            add_kserve(door.services, host)
        gateway = None
        try:
            await door.set_ready()
            gateway = await self._start_gateway()
            if not ending.is_asked:
                announce(self._addresses(gateway, metrics))
            await ending.wait()
        finally:
            # Clients hear first that the server ends, then that their requests do.
            await door.set_ending()
            if gateway is not None:
                gateway.begin_stop()
            await host.drain(self._config.shutdown_timeout_s)
            if gateway is not None:
                await gateway.stop()
            await door.close(STOP_GRACE_S if host.num_requests else IDLE_GRACE_S)

    def _addresses(
        self, gateway: Gateway | None, metrics: MetricsServer | None
    ) -> Addresses:
        page = None
        if metrics is not None:
            address = join_address(self._config.metrics_host, metrics.port)
            page = f"http://{address}/metrics"
        url = None if gateway is None else gateway.url
        return Addresses(self._door.address, url, page)

    async def _start_gateway(self) -> Gateway | None:
        """Start it; ``None``: there is to be none, or the server is to end first.

        One that fails ends the server in order: clients of gRPC are there already.
        """
        if self._door.gateway_listener is None:
            return None
        start = asyncio.create_task(
            Gateway.start(
                self._config,
                self._door.gateway_listener,
                self._tokens,
                self._ending.fail,
            )
        )
        await self._ending.wait_or(start)
        start.cancel()  # which does nothing to one that is done
        await asyncio.wait({start})
        if start.cancelled():
            return None
        try:
            return start.result()
        except GatewayFailed as error:
            self._ending.fail(str(error))
            return None

    async def _watch(self, engine: AsyncHybridEngine) -> None:
        await engine.has_ended.wait()
        self._ending.fail("the engine has ended by an error; see its event")
