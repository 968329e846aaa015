"""The executor as the engine sees it: the contract that every backend fulfils.

Knows plans and layouts; imports no tensor library.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from hybrid.bridge.kv_layout import KVLayout, KVOrder
from hybrid.scheduler.plan import StepPlan

from .checkpoint.model_source import ModelSource

API_VERSION: Final = (1, 0)
"""(major, minor) of this contract: majors must be equal, a backend's minor no newer."""

ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)`` while a model loads; any unit."""


class SupportsDLPack(Protocol):
    """An array whose memory others may see without a copy."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """Return a capsule."""
        ...

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Return (device type, device id)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an executor can do. What it cannot is refused by name, never dropped."""

    name: str
    description: str
    devices: tuple[str, ...]
    """Device names it can run on here, the preferred first (``cpu``, ``cuda``)."""
    dtypes: tuple[str, ...]
    """Dtypes it computes in."""
    fast_dtypes: Mapping[str, tuple[str, ...]]
    """By device, those it is fast in, the preferred first. ``dtype="auto"`` is the
    checkpoint's own dtype if it is among them, else the first."""
    block_sizes: tuple[int, ...]
    """Tokens per block that it accepts, the preferred first."""
    kv_orders: tuple[KVOrder, ...] = (KVOrder.LAYER_FIRST,)
    returns_logits: bool = True
    """False: it samples itself and returns tokens."""
    sampling_fields: tuple[str, ...] = ()
    """Fields of ``SamplingParams`` that an executor which samples itself honours."""
    prefix_reuse: bool = True
    chunked_prefill: bool = True
    aligned_chunks: bool = False
    """A need, not an ability: a prompt chunk that is not the last must end at a block
    boundary."""
    block_copy: bool = True
    prompt_logprobs: bool = True
    model_files: tuple[str, ...] = ()
    """Names of files by which a directory is known as this executor's own compiled
    form of a model, which it takes beside checkpoints."""


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """What the engine tells an executor when it loads a model."""

    dtype: str = "float32"
    """Resolved: never ``auto``."""
    device: str = "cpu"
    block_size: int = 16
    max_model_len: int | None = None
    """Asked-for context; ``None``: the model's own."""
    max_num_seqs: int = 256
    """Most sequences of one step: for buffers that are made once."""
    num_threads: int | None = None
    """CPU threads; ``None``: leave the library's own choice."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Executor-specific options; an unknown one is a ``ConfigError``."""
    cache_dir: Path | None = None
    """Where this executor may keep what it makes of a model (compiled forms); may not
    exist yet. ``None``: keep nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a loaded model is."""

    architecture: str
    vocab_size: int
    """Columns of the logits."""
    max_model_len: int
    """Most positions it was made for."""
    max_num_batched_tokens: int | None = None
    """Most tokens of one step, where the model has a limit; ``None``: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """What the KV cache of the loaded model needs, before its size is chosen."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    order: KVOrder
    available_bytes: int
    """Memory free for KV on the executor's device, now, weights being loaded."""
    cell_bytes: int | None = None
    """Bytes of one block's K and V in one layer where the executor's cells hold more
    than ``[head, token, dim]`` (the scales of a quantised cache, in line), so that no
    ``KVLayout`` describes them."""

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block over all layers, K and V."""
        if self.cell_bytes is not None:
            return self.num_layers * self.cell_bytes
        return self.layout(1, block_size).block_bytes

    def layout(self, num_blocks: int, block_size: int) -> KVLayout:
        """The layout of a pool of ``num_blocks`` blocks (null block included)."""
        return KVLayout(
            num_blocks=num_blocks,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            block_size=block_size,
            head_dim=self.head_dim,
            dtype=self.dtype,
            order=self.order,
        )


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """What came out of one step: logits, or the tokens."""

    logits: SupportsDLPack | None = None
    """float32 ``[sum of num_logits_rows, vocab_size]`` in host memory, rows in the
    plan's order. Valid until the next ``execute``. May be left out where the plan's
    ``needs_logits`` is False and ``likeliest_ids`` are given."""
    sampled_token_ids: tuple[tuple[int, ...], ...] | None = None
    """For each scheduled request its tokens, from an executor that samples itself."""
    likeliest_ids: Sequence[int] | None = None
    """Beside logits, if the executor met them on its way: for each row the index of the
    highest, the first of equal ones, or -1 where it does not say, as where a number is
    NaN or the highest is not finite. Greedy draws then need not look through the row.
    Valid as long as the logits. Without logits a -1, or an id that no tokenizer knows,
    lets the engine execute the plan again and ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One of the ways in which an executor can compute."""

    name: str
    description: str
    reason: str | None = None
    """Why it cannot be used on this machine; ``None``: it can."""


class Executor(ABC):
    """Runs step plans, for one thread: load, allocate_kv, execute as often, close."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do on this machine; callable before ``load``.

        The same after it, but that ``prompt_logprobs`` may be ``False`` of a model.
        """

    def implementations(self) -> tuple[Implementation, ...]:
        """Ways in which it can compute, the preferred first; asked before ``load``.

        For ``hybrid executors --explain``; empty where there is one way only.
        """
        return ()

    @abstractmethod
    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Load a model's weights (``None`` only for an executor that needs none).

        Raises:
            CheckpointError: the files are at fault.
            UnsupportedFeature: this executor cannot run this model; says why.
            ConfigError: an option is at fault.
        """

    @abstractmethod
    def kv_spec(self) -> KVSpec:
        """Sizes of the loaded model's KV cache and the memory there is for it."""

    @abstractmethod
    def allocate_kv(self, num_blocks: int) -> KVLayout | None:
        """Allocate the pool, null block included; never moved or resized afterwards.

        Returns:
            Where its bytes lie, or ``None`` if ``kv_spec`` names ``cell_bytes``.

        Raises:
            ConfigError: the memory cannot be had; names the bytes.
        """

    @abstractmethod
    def execute(self, plan: StepPlan) -> ForwardResult:
        """Copy blocks, write the new K and V, attend, return logits of wanted rows.

        May come a second time for the same entries, without block copies, if the first
        ``plan`` had ``needs_logits=False`` and the result no logits.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything. Twice is no error."""
