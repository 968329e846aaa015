"""Runs a compiled TensorRT engine over our pool.

The engine holds weights, norms and attention; it is told where the blocks lie and
which belong to whom, writes a step's K and V itself and gives logits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch

from hybrid.backends.checkpoint.model_source import ModelSource
from hybrid.backends.interface import ExecutorConfig, ModelInfo
from hybrid.backends.pytorch.kv_pool import KVPool
from hybrid.bridge import KVLayout, KVOrder, PackedBatch, pack_batch
from hybrid.scheduler.errors import CheckpointError, ConfigError, ExecutorFailed
from hybrid.scheduler.plan import StepPlan

from .decode_graphs import pad_plan
from .engine_check import check_engine, check_version
from .engine_config import ENGINE_FILE, read_engine_config
from .engine_session import EngineSession, installed_version
from .engine_tensors import INPUT_DTYPES, EngineTensors, cache_indirection_bytes
from .machine import Machine
from .runner import CacheSizes, Runner
from .sent_array import SentArray


class EngineRunner(Runner):
    """One engine of one GPU.

    Raises:
        CheckpointError: the directory's files are at fault.
        UnsupportedFeature: neither this executor nor this TensorRT-LLM can run it.
        ConfigError: an option is not what it was built for.
    """

    def __init__(
        self, source: ModelSource, config: ExecutorConfig, machine: Machine
    ) -> None:
        self._engine: Final = read_engine_config(source.path)
        # What can be said without GPU and package is said first: on the builder's host.
        check_engine(self._engine, config)
        if config.device != machine.kernel_device:
            raise ConfigError(
                f"{source.path}: an engine runs on {machine.kernel_device}, the device "
                f"is {config.device!r}; there are: {', '.join(machine.devices)}"
            )
        check_version(self._engine, installed_version())
        self._config: Final = config
        self._max_model_len: Final = config.max_model_len or self._engine.max_seq_len
        self._device: Final = torch.device(config.device)
        self._session: Final = EngineSession(source.path / ENGINE_FILE, INPUT_DTYPES)
        self._tensors: EngineTensors | None = None
        # Before the memory that is left for KV is measured.
        self._logits = self._make_logits(config.max_num_seqs, self._engine.vocab_size)
        # Of the logits that are wanted, where an engine gives more.
        self._rows = SentArray.zeros(
            (1, config.max_num_seqs), torch.int64, self._device
        )
        # Its own: on the default one TensorRT waits for the device at every step.
        self._stream: Final = (
            torch.cuda.Stream()  # type: ignore[no-untyped-call]
            if self._device.type == "cuda"
            else None
        )

    @property
    def info(self) -> ModelInfo:
        """See ``Runner``."""
        return ModelInfo(
            architecture=self._engine.architecture,
            vocab_size=self._engine.vocab_size,
            max_model_len=self._engine.max_seq_len,
            max_num_batched_tokens=self._engine.max_num_tokens,
        )

    @property
    def cache(self) -> CacheSizes:
        """See ``Runner``."""
        return CacheSizes(
            num_layers=self._engine.num_layers,
            num_kv_heads=self._engine.num_kv_heads,
            head_dim=self._engine.head_dim,
            dtype=self._engine.kv_dtype,
        )

    @property
    def reserved_bytes(self) -> int:
        """The step's largest tensor: a number for each place of each sequence."""
        return cache_indirection_bytes(self._config.max_num_seqs, self._max_model_len)

    @property
    def gives_every_row(self) -> bool:
        """Whether it computes logits of every token, as prompt logprobs need.

        Without ``--gather_context_logits`` it does of each sequence's last alone.
        """
        return "last_token_ids" not in self._session.inputs

    def make_pool(self, num_blocks: int) -> KVPool:
        """See ``Runner``."""
        sizes = self.cache
        layout = KVLayout(
            num_blocks=num_blocks,
            num_layers=sizes.num_layers,
            num_kv_heads=sizes.num_kv_heads,
            block_size=self._config.block_size,
            head_dim=sizes.head_dim,
            dtype=sizes.dtype,
            order=KVOrder.BLOCK_FIRST,
        )
        pool = KVPool(layout, self._device)
        self._tensors = EngineTensors(
            pool,
            max_num_seqs=self._config.max_num_seqs,
            max_num_tokens=self._engine.max_num_tokens,
            max_model_len=self._max_model_len,
        )
        self._check_shapes()
        return pool

    def _check_shapes(self) -> None:
        """Ask the engine about a step of one token, before any request depends on it.

        Raises:
            CheckpointError: its shapes are not those that config.json tells.
        """
        assert self._tensors is not None, "make_pool makes them"
        plan = pad_plan(StepPlan(0, (), 0, (), (), ()), 1)
        inputs = self._given(self._tensors.fill(plan, pack_batch(plan)))
        try:
            _, num_columns = self._session.output_shape(inputs)
        except ExecutorFailed as error:
            raise CheckpointError(
                f"{self._engine.path}: the engine does not take what its config.json "
                f"describes: {error}"
            ) from error
        if num_columns < self._engine.vocab_size:
            raise CheckpointError(
                f"{self._engine.path}: the engine gives {num_columns} logits a token, "
                f"its config.json says vocab_size {self._engine.vocab_size}"
            )

    def run(self, plan: StepPlan) -> torch.Tensor:
        """See ``Runner``."""
        assert self._tensors is not None, "make_pool comes before run"
        batch = pack_batch(plan)
        with self._own_stream() as stream:
            inputs = self._given(self._tensors.fill(plan, batch))
            num_rows, num_columns = self._session.output_shape(inputs)
            if num_rows > len(self._logits) or num_columns != self._logits.shape[1]:
                self._logits = self._make_logits(num_rows, num_columns)
            logits = self._logits[:num_rows]
            self._session.run(inputs, logits, stream)
            return self._wanted_rows(logits, plan, batch)

    def close(self) -> None:
        """See ``Runner``."""
        self._session.close()
        if self._tensors is not None:
            self._tensors.close()
        self._tensors = None

    def _given(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensors[name] for name in sorted(self._session.inputs)}

    def _make_logits(self, num_rows: int, num_columns: int) -> torch.Tensor:
        return torch.empty(
            (num_rows, num_columns),
            dtype=self._session.logits_dtype,
            device=self._device,
        )

    def _wanted_rows(
        self, logits: torch.Tensor, plan: StepPlan, batch: PackedBatch
    ) -> torch.Tensor:
        if self.gives_every_row:
            rows = batch.logits_rows
        else:
            counts = np.array([entry.num_logits_rows for entry in plan.scheduled])
            assert counts.max(initial=0) <= 1, "capabilities said: last rows only"
            rows = np.flatnonzero(counts)
        # A head may be padded to whole tiles.
        logits = logits[:, : self._engine.vocab_size]
        if len(rows) == len(logits):
            return logits
        self._rows = self._rows.at_least(len(rows))
        return logits.index_select(0, *self._rows.put(rows))

    @contextmanager
    def _own_stream(self) -> Iterator[int]:
        """Run after what the executor enqueued, and before what it will enqueue."""
        if self._stream is None:
            yield 0
            return
        outer = torch.cuda.current_stream()
        self._stream.wait_stream(outer)
        with torch.cuda.stream(self._stream):
            yield self._stream.cuda_stream
        outer.wait_stream(self._stream)
