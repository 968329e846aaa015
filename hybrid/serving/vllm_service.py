"""``vllm.grpc.engine.VllmEngine`` over one engine host.

The messages are those of smg-grpc-proto; the meaning follows smg-grpc-servicer 0.14.1.
"""

import time
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Final

import grpc
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as pb_grpc
from smg_grpc_proto.generated import common_pb2

from hybrid.scheduler import UnsupportedFeature

from .answer_writer import AnswerWriter
from .cache_flush import flush_cache
from .engine_host import EngineHost, HostState
from .engine_profiler import EngineProfiler
from .generation_rate import GenerationRate
from .live_requests import LiveRequests
from .tokenizer_archive import TokenizerArchive
from .vllm_info import loads, model_info, server_info
from .vllm_kv_events import KvEventMessages
from .vllm_profile import check_profile_request
from .vllm_request import parse_request
from .vllm_stream import AnswerMessages

NO_PROFILER: Final = "this server takes no profiles: start it with --profile-dir"


class VllmEngineService(pb_grpc.VllmEngineServicer):  # type: ignore[misc] # untyped
    """Every RPC of the service; runs in the event loop that owns ``host``.

    What a method raises becomes a status by the ``ServiceTable`` that it is called by.
    """

    def __init__(self, host: EngineHost, profile_dir: Path | None = None) -> None:
        """Serve one engine.

        Args:
            host: the engine.
            profile_dir: where profiles may be written; ``None``: none are taken.
        """
        model = host.model
        self._profiler: Final = (
            None if profile_dir is None else EngineProfiler(host.engine, profile_dir)
        )
        self._host: Final = host
        self._live: Final = LiveRequests()
        self._rate: Final = GenerationRate()
        self._model_info: Final = model_info(model)
        self._tokenizer: Final = (
            None
            if model.path is None or model.tokenizer is None
            else TokenizerArchive(model.path, model.tokenizer)
        )

    async def Generate(self, request: Any, context: Any) -> None:
        """Continue one prompt.

        A coroutine that writes, no generator: a cancel that comes while a message waits
        for a slow client is raised here, and the blocks are free at once.
        """
        parsed = parse_request(request, self._host.model)
        messages = AnswerMessages(parsed.params, stream=request.stream)
        with (
            self._live.entered(request.request_id) as request_id,
            closing(AnswerWriter(context)) as writer,
        ):
            outputs = self._host.generate(
                parsed.prompt,
                parsed.params,
                request_id=request_id,
                num_prompt_tokens=parsed.num_prompt_tokens,
                stream=request.stream,
            )
            async with aclosing(outputs):
                async for output in outputs:
                    for message in messages.take(output):
                        await writer.write(message)

    async def Abort(self, request: Any, context: Any) -> Any:
        """End requests with finish reason ``abort``; an unknown id is no error."""
        for client_id in request.request_ids:
            for request_id in self._live.engine_ids(client_id):
                self._host.abort(request_id)
        return pb.AbortResponse()

    async def HealthCheck(self, request: Any, context: Any) -> Any:
        """Whether requests are taken."""
        state = self._host.state
        return pb.HealthCheckResponse(
            healthy=state is HostState.READY, message=state.value
        )

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        """What is served."""
        return self._model_info

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """How it is served."""
        return server_info(self._host)

    async def GetLoads(self, request: Any, context: Any) -> Any:
        """How busy the engine is, whatever rank and sections are asked for.

        There is one rank, and one section that is always told.
        """
        host, stats = self._host, self._host.stats()
        rate = self._rate.look(stats.generation_tokens_total, time.monotonic())
        return loads(stats, host.prompts, host.model.max_num_seqs, rate)

    async def GetTokenizer(self, request: Any, context: Any) -> None:
        """The model's tokenizer files as one zip, in pieces."""
        if self._tokenizer is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "this server has no tokenizer: it takes and gives token ids",
            )
            return
        archive = await self._tokenizer.get()
        with closing(AnswerWriter(context)) as writer:
            for data, sha256 in archive.pieces():
                chunk = common_pb2.GetTokenizerChunk(data=data, sha256=sha256)
                await writer.write(chunk)

    async def SubscribeKvEvents(self, request: Any, context: Any) -> None:
        """What the prefix cache holds, now and after every step.

        No history is kept: wherever a client wants to resume, it gets the present.
        """
        messages = KvEventMessages()
        with closing(AnswerWriter(context)) as writer:
            # Clients wait for the headers, and an idle engine sends nothing else.
            await writer.begin()
            async with aclosing(self._host.subscribe_kv_events()) as batches:
                try:
                    async for batch in batches:
                        for message in messages.take(batch):
                            await writer.write(message)
                except UnsupportedFeature as error:
                    await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))

    async def FlushCache(self, request: Any, context: Any) -> Any:
        """Forget cached prefixes, at once or when the engine is idle."""
        if await flush_cache(self._host.engine, request.timeout_s):
            return common_pb2.FlushCacheResponse(
                success=True, message="the prefix cache is empty"
            )
        return common_pb2.FlushCacheResponse(
            success=False, message="requests are running: nothing was done"
        )

    async def StartProfile(self, request: Any, context: Any) -> Any:
        """Profile the engine's thread, where the server was told a directory."""
        if self._profiler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_PROFILER)
            return None
        check_profile_request(request)
        output_dir = request.output_dir if request.HasField("output_dir") else None
        if await self._profiler.start(output_dir):
            return common_pb2.ProfileResponse(success=True, message="it has begun")
        return common_pb2.ProfileResponse(
            success=False, message="a profile is being taken: nothing was done"
        )

    async def StopProfile(self, request: Any, context: Any) -> Any:
        """End the profile; the message is its file's path on the server."""
        if self._profiler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_PROFILER)
            return None
        path = await self._profiler.stop()
        return common_pb2.ProfileResponse(
            success=path is not None,
            message="no profile is being taken" if path is None else str(path),
        )

    async def Embed(self, request: Any, context: Any) -> None:
        """Refused: the engine's executors give logits, not embeddings."""
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED,
            f"{self._host.model.name} is served for generation; it gives no embeddings",
        )
