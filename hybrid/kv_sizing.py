"""How many blocks the KV pool gets."""

from typing import Final

from hybrid.backends.interface import KVSpec
from hybrid.scheduler import ConfigError
from hybrid.scheduler.shown_value import shown

from .engine_config import EngineConfig

FREE_MEMORY_SHARE: Final = {"cpu": 0.5}
FREE_MEMORY_SHARE_GPU: Final = 0.9
"""Of the memory that is free once the weights are loaded. A CPU's is shared with the
activations and with whatever else the machine does."""


def choose_num_blocks(
    config: EngineConfig,
    spec: KVSpec,
    *,
    block_size: int,
    max_model_len: int,
    device: str,
) -> int:
    """Usable blocks of the pool (the null block comes on top).

    Without a size given: a share of the free memory, but no more than
    ``max_num_seqs`` sequences of full length could use.

    Raises:
        ConfigError: not even one block fits, more is asked for than is free, or the
            executor reports none free; names the bytes.
    """
    _check_report(spec.available_bytes)
    block_bytes = spec.block_bytes(block_size)
    if config.num_kv_blocks is not None:
        _check_fits((config.num_kv_blocks + 1) * block_bytes, spec)
        return config.num_kv_blocks
    if config.kv_cache_memory is not None:
        budget = config.kv_cache_memory
        _check_fits(budget, spec)
        num_blocks = budget // block_bytes - 1
    else:
        share = FREE_MEMORY_SHARE.get(device, FREE_MEMORY_SHARE_GPU)
        budget = int(spec.available_bytes * share)
        most = config.max_num_seqs * -(-max_model_len // block_size)
        num_blocks = min(budget // block_bytes - 1, most)
    if num_blocks < 1:
        pool = f"kv_cache_memory of {budget:,} bytes"
        if config.kv_cache_memory is None:
            pool = f"a share of {budget:,} of the {spec.available_bytes:,} bytes free"
        raise ConfigError(
            f"{pool} holds no KV block beside the null block: one of {block_size} "
            f"tokens takes {block_bytes:,} bytes"
        )
    return num_blocks


def _check_report(num_bytes: object) -> None:
    """No option of the user's is at fault for what the executor reports."""
    if not isinstance(num_bytes, int) or num_bytes < 1:
        raise ConfigError(
            f"the executor reports {shown(num_bytes)} bytes free for KV "
            "(available_bytes of its kv_spec), must be an int of 1 or more"
        )


def _check_fits(num_bytes: int, spec: KVSpec) -> None:
    """Refuse at start what would end the process once the pool fills."""
    if num_bytes > spec.available_bytes:
        raise ConfigError(
            f"a KV pool of {num_bytes:,} bytes is asked for, {spec.available_bytes:,} "
            "bytes of memory are free; lower num_kv_blocks or kv_cache_memory"
        )
