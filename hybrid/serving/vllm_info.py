"""What the protocol's info and load messages say of the engine that is served."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from smg_grpc_proto import vllm_engine_pb2 as pb

from hybrid import __version__
from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.metrics import EngineSnapshot

from .engine_host import EngineHost, HostState
from .prompt_load import PromptLoad
from .served_model import ServedModel

SERVER_TYPE: Final = "vllm-grpc"
"""By which gateways know the protocol."""
SAMPLING_DEFAULTS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
)
"""Of a model's generation_config.json: what a gateway fills in for its users. Source:
smg-grpc-servicer 0.14.1 (``vllm/model_info.py``)."""


def model_info(model: ServedModel) -> Any:
    """Make a ``GetModelInfoResponse``; reads small files of the model's directory.

    Raises:
        CheckpointError: one of them is no JSON object.
    """
    config = _read(model.path, "config.json")
    generation = _read(model.path, "generation_config.json")
    path = "" if model.path is None else str(model.path)
    tokenizer = model.tokenizer
    defaults = {
        name: generation[name]
        for name in SAMPLING_DEFAULTS
        if generation.get(name) is not None
    }
    return pb.GetModelInfoResponse(
        model_path=path or model.name,
        served_model_name=model.name,
        tokenizer_path="" if tokenizer is None else path,
        is_generation=True,
        max_context_length=model.max_model_len,
        # An answer needs one token of the context.
        max_req_input_len=model.max_model_len - 1,
        vocab_size=model.vocab_size,
        model_type=str(config.get("model_type", "")),
        architectures=_texts(config.get("architectures")) or [model.architecture],
        eos_token_ids=sorted(tokenizer.eos_token_ids) if tokenizer else [],
        bos_token_id=(tokenizer.bos_token_id or 0) if tokenizer else 0,
        pad_token_id=_id(config.get("pad_token_id")),
        default_sampling_params_json=json.dumps(defaults) if defaults else "",
    )


def _read(directory: Path | None, name: str) -> dict[str, object]:
    path = None if directory is None else directory / name
    return (path and read_json_object(path)) or {}


def _id(value: object) -> int:
    """A token id as the protocol has room for it; 0 stands for none."""
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


def _texts(value: object) -> list[str]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def server_info(host: EngineHost) -> Any:
    """Make a ``GetServerInfoResponse``."""
    model = host.model
    return pb.GetServerInfoResponse(
        active_requests=host.num_requests,
        is_paused=host.state is HostState.DRAINING,
        last_receive_timestamp=host.last_request_s,
        uptime_seconds=time.time() - host.started_s,
        server_type=SERVER_TYPE,
        data_parallel_size=1,
        kv_cache_dtype=model.dtype,
        model_dtype=model.dtype,
        block_size=model.block_size,
        attention_backend=model.executor,
        max_num_seqs=model.max_num_seqs,
        constrained_decoding_start="first_token",
    )


def loads(
    stats: EngineSnapshot, prompts: PromptLoad, max_num_seqs: int, tokens_per_s: float
) -> Any:
    """Make a ``GetLoadsResponse``.

    Args:
        stats: of the engine's last step.
        prompts: of the requests in the server.
        max_num_seqs: most sequences at once.
        tokens_per_s: generated lately.
    """
    # As vLLM counts: cached blocks that nobody owns are free.
    usage = 1.0 - stats.kv_free_blocks / stats.kv_total_blocks
    load = pb.SchedulerLoad(
        num_running_reqs=stats.num_requests_running,
        num_waiting_reqs=stats.num_requests_waiting,
        num_total_reqs=stats.num_requests_running + stats.num_requests_waiting,
        num_used_tokens=stats.kv_used_slots,
        max_total_num_tokens=stats.kv_capacity_tokens,
        token_usage=usage,
        utilization=usage,
        gen_throughput=tokens_per_s,
        cache_hit_rate=prompts.hit_rate,
        max_running_requests=max_num_seqs,
        num_waiting_uncached_tokens=prompts.num_waiting_uncached(
            stats.num_requests_waiting
        ),
    )
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=__version__,
        dp_rank_count=1,
        loads=[load],
    )
