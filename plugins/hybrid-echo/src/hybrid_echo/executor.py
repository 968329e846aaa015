"""An executor without a model: it goes on as the text went on before.

Where a real one keeps K and V, this one keeps the token ids themselves. All the rest is
as in a real one: block copies, writes by slot, reads through the block table, logits
that depend on nothing but the tokens up to their row.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybrid.api import (
    Capabilities,
    ConfigError,
    Executor,
    ExecutorConfig,
    ForwardResult,
    KVLayout,
    KVOrder,
    KVSpec,
    ModelInfo,
    ModelSource,
    ProgressCallback,
    ScheduledRequest,
    StepPlan,
    csr_block_table,
    pack_batch,
    slot_mapping,
)

DEFAULT_VOCAB_SIZE: Final = 512
MAX_VOCAB_SIZE: Final = 1 << 24
"""The cache is float32, which is exact for integers below it."""


class EchoExecutor(Executor):
    """Repeats a prompt of different tokens for ever; option: ``vocab_size`` (512)."""

    def __init__(self) -> None:
        self._vocab_size = DEFAULT_VOCAB_SIZE
        self._token_ids: NDArray[np.float32] = np.empty((0, 1), dtype=np.float32)

    def capabilities(self) -> Capabilities:
        """What it can do; asked before anything is loaded."""
        return Capabilities(
            name="echo",
            description="goes on as the text went on before; no model",
            devices=("cpu",),
            dtypes=("float32",),
            fast_dtypes={"cpu": ("float32",)},
            block_sizes=(16, 1, 4, 32),
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Check the options, all of them: one that is ignored misleads its user."""
        del model, progress  # There are no weights.
        options = dict(config.options)
        vocab_size = options.pop("vocab_size", DEFAULT_VOCAB_SIZE)
        if options:
            raise ConfigError(f"executor echo: unknown option {min(options)!r}")
        if type(vocab_size) is not int or not 1 <= vocab_size <= MAX_VOCAB_SIZE:
            raise ConfigError(
                f"executor echo: vocab_size is {vocab_size!r}, must be 1 to "
                f"{MAX_VOCAB_SIZE}"
            )
        self._vocab_size, self._block_size = vocab_size, config.block_size
        return ModelInfo(architecture="echo", vocab_size=vocab_size, max_model_len=4096)

    def kv_spec(self) -> KVSpec:
        """One layer, one head, one number each for K and V."""
        return KVSpec(
            num_layers=1,
            num_kv_heads=1,
            head_dim=1,
            dtype="float32",
            order=KVOrder.LAYER_FIRST,
            available_bytes=1 << 28,
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """Allocate the pool; K is the slot's token id, V stays unused."""
        layout = self.kv_spec().layout(num_blocks, self._block_size)
        pool = np.zeros(layout.shape, dtype=np.float32)
        # [layer, k or v, block, head, token, dim] -> a view [block, token] of K.
        self._token_ids = pool[0, 0].reshape(num_blocks, self._block_size)
        return layout

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Copy blocks, write the step's tokens, make one row per wanted logits."""
        for copy in plan.block_copies:
            self._token_ids[copy.target] = self._token_ids[copy.source]
        batch = pack_batch(plan)
        table = csr_block_table(plan.scheduled, batch.seq_lens, self._block_size)
        slots = slot_mapping(batch, table, self._block_size)
        self._token_ids.reshape(-1)[slots] = batch.input_ids
        next_ids = [i for entry in plan.scheduled for i in self._next_ids(entry)]
        logits = np.zeros((len(next_ids), self._vocab_size), dtype=np.float32)
        logits[np.arange(len(next_ids)), next_ids] = 1.0
        return ForwardResult(logits=logits)

    def close(self) -> None:
        """Free the pool; twice is no error."""
        self._token_ids = np.empty((0, 1), dtype=np.float32)

    def _next_ids(self, entry: ScheduledRequest) -> list[int]:
        """The token after each of the entry's last ``num_logits_rows`` tokens."""
        context = self._token_ids[list(entry.block_ids)].reshape(-1)
        num_tokens = entry.num_computed_tokens + len(entry.token_ids)
        positions = range(num_tokens - entry.num_logits_rows, num_tokens)
        return [_next_id(context[: position + 1]) for position in positions]


def _next_id(context: NDArray[np.float32]) -> int:
    """What followed the last token when it stood there before; else the first token."""
    earlier = np.flatnonzero(context[:-1] == context[-1])
    return int(context[earlier[-1] + 1] if earlier.size else context[0])
