"""Everything that can be chosen about an engine, checked once."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from hybrid.scheduler import ConfigError, Scheduler, SchedulerConfig
from hybrid.scheduler.config import SchedulingPolicy
from hybrid.scheduler.shown_value import shown

from .logits_processors import missing_method
from .nearest_name import nearest_hint
from .plugins.selection import PluginSelection, parse_names

SchedulerFactory = Callable[[SchedulerConfig], Scheduler]
MAX_BYTES: Final = 2**60
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS: Final = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(value: object) -> object:
    """Read ``"2GiB"`` or ``"500 MB"`` as a number of bytes; pass anything else on.

    Raises:
        ValueError: the text is no size.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?\s*", value.lower())
    units = _UNITS | _BINARY_UNITS
    if match is None or match[2] not in units or match[1].count(".") > 1:
        raise ValueError('must be a number of bytes or a text like "2GiB"')
    amount = float(match[1]) * units[match[2]]
    if amount > MAX_BYTES:
        raise ValueError(f"must be at most {MAX_BYTES:,} bytes")
    return int(amount)


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=MAX_BYTES)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[
    Sequence[str],
    BeforeValidator(lambda v: parse_names(v) if isinstance(v, str) else v),
]


class EngineConfig(BaseModel):
    """The keywords of ``LLM``; vLLM's names where vLLM has the thing.

    Raises:
        ConfigError: an option is unknown (names the nearest) or out of range (names
            the value and the limit).
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True
    )

    model: str | None = None
    """Known name (``hybrid models``), directory, .gguf file or Hugging Face id;
    ``None`` only for an executor that needs no checkpoint."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face id."""
    executor: str = "auto"
    """What runs the model (``hybrid executors``)."""
    executor_options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of that executor alone."""
    scheduler: str | SchedulerFactory = "paged"
    """A name (``hybrid plugins``), or a callable from ``SchedulerConfig`` to
    ``Scheduler``."""
    dtype: str = "auto"
    """Of weights, activations and KV; ``auto`` is the checkpoint's own where the device
    is fast in it."""
    device: str = "auto"
    """``cpu``, ``cuda``; ``auto`` is the executor's first choice."""
    block_size: Count | None = None
    """Tokens per KV block; ``None`` is the executor's first choice."""
    kv_cache_memory: Bytes | None = None
    """Bytes of the KV pool, or a text like ``"2GiB"``; ``None``: a share of the memory
    that is free."""
    num_kv_blocks: Count | None = None
    """Blocks of the KV pool, instead of its bytes."""
    max_model_len: Count | None = None
    """Most tokens of a request, prompt and answer; ``None`` is the model's own."""
    max_num_seqs: Count = 256
    """Most sequences that run at once."""
    max_num_batched_tokens: Count | None = None
    """Tokens of one step; ``None`` is 2048, or the context if that is more and prompts
    are not chunked."""
    max_prefill_chunk_tokens: Count | None = None
    """Most tokens of one prompt in one step; ``None``: as the budget allows."""
    enable_prefix_caching: bool = True
    """Whether requests reuse the KV of equal prompt beginnings."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed over several steps."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Who is next: first come, or lowest ``priority``."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Source of the seeds of requests that bring none."""
    num_threads: Count | None = None
    """CPU threads of the executor, at most the machine's; ``None``: its library's
    choice."""
    max_logprobs: Annotated[int, Field(ge=0)] = 20
    """Most ``logprobs`` or ``prompt_logprobs`` that a request may ask for."""
    skip_tokenizer_init: bool = False
    """Take and give token ids only."""
    chat_template: str | None = None
    """A Jinja chat template in place of the model's own."""
    logits_processors: Sequence[Any] = ()
    """Objects that edit logits rows before penalties (see ``LogitsProcessor``), or the
    names of plugins' ones."""
    plugins: Names | None = None
    """These plugins alone, each of which must load: names, or a comma list; ``None``:
    ``HYBRID_PLUGINS``, or whatever is installed."""
    plugins_disabled: Names | None = None
    """Plugins that are not to be loaded; ``None``: ``HYBRID_PLUGINS_DISABLED``."""

    def __init__(self, **keywords: Any) -> None:
        """Check the keywords of a caller.

        Raises:
            ConfigError: a keyword is unknown (names the nearest) or its value wrong.
        """
        known = type(self).model_fields
        for name in keywords:
            if name not in known:
                raise ConfigError(
                    f"unknown option {shown(name)}{nearest_hint(name, known)}"
                )
        try:
            super().__init__(**keywords)
        except ValidationError as error:
            fault = error.errors()[0]
            name = str(fault["loc"][0])
            message = fault["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{name} is {shown(keywords[name])}: {message}") from None
        if self.num_kv_blocks is not None and self.kv_cache_memory is not None:
            raise ConfigError(
                f"num_kv_blocks={self.num_kv_blocks} and "
                f"kv_cache_memory={self.kv_cache_memory} both size the KV pool: "
                "give one"
            )
        num_cpus = os.cpu_count() or 1
        if self.num_threads is not None and self.num_threads > num_cpus:
            raise ConfigError(
                f"num_threads is {shown(self.num_threads)}, must be at most "
                f"{num_cpus}, the CPUs of this machine"
            )
        if isinstance(self.logits_processors, str):
            raise ConfigError(
                f"logits_processors is {shown(self.logits_processors)}, must be a "
                "sequence of names and objects"
            )
        for processor in self.logits_processors:
            method = missing_method(processor)
            if method is not None and not isinstance(processor, str):
                raise ConfigError(
                    f"logits_processors holds a {type(processor).__name__} without "
                    f"the method {method}"
                )

    def is_asked_for(self, name: str) -> bool:
        """Whether the caller set an option, be it to its default."""
        return name in self.model_fields_set

    @property
    def plugin_selection(self) -> PluginSelection:
        """Which plugins may be loaded, by the options or else by the environment.

        Raises:
            ConfigError: a plugin is both asked for and disabled.
        """
        return PluginSelection.choose(self.plugins, self.plugins_disabled)

    @property
    def policy(self) -> SchedulingPolicy:
        """The scheduling policy as the scheduler names it."""
        return SchedulingPolicy(self.scheduling_policy)
