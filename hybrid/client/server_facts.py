"""What a server says of itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """Whether a server takes requests."""

    is_healthy: bool
    message: str
    """Why, or why not."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server serves."""

    name: str
    """As clients call it."""
    architectures: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    """Most tokens of a request, prompt and answer together."""
    eos_token_ids: tuple[int, ...]
    default_sampling_params: Mapping[str, Any]
    """What the model's makers advise; empty: nothing."""

    @classmethod
    def of(cls, message: Any) -> "ModelInfo":
        """Read a ``GetModelInfoResponse``."""
        return cls(
            name=message.served_model_name or message.model_path,
            architectures=tuple(message.architectures),
            vocab_size=message.vocab_size,
            max_model_len=message.max_context_length,
            eos_token_ids=tuple(message.eos_token_ids),
            default_sampling_params=_object(message.default_sampling_params_json),
        )


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """How busy one scheduler of a server is."""

    num_running_requests: int
    num_waiting_requests: int
    num_used_tokens: int
    """Of ``max_total_tokens``."""
    max_total_tokens: int
    """What the KV cache holds."""
    kv_usage: float
    """Share of the KV cache in use, 0 to 1."""
    cache_hit_rate: float
    """Share of prompt tokens found in the prefix cache, 0 to 1."""

    @classmethod
    def of(cls, message: Any) -> "ServerLoad":
        """Read a ``SchedulerLoad``."""
        return cls(
            num_running_requests=message.num_running_reqs,
            num_waiting_requests=message.num_waiting_reqs,
            num_used_tokens=message.num_used_tokens,
            max_total_tokens=message.max_total_num_tokens,
            kv_usage=message.token_usage,
            cache_hit_rate=message.cache_hit_rate,
        )


def _object(text: str) -> Mapping[str, Any]:
    """A hint: what is no JSON object says nothing."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
