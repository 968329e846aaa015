"""The torch executor: any decoder of transformers whose attention can be replaced.

The model's own code runs on the packed tokens of a step, its attention reads and writes
our pool; contexts and generations go through one forward pass. CPU and CUDA alike.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import torch

from hybrid.backends.checkpoint.model_source import CheckpointFormat, ModelSource
from hybrid.backends.interface import (
    Capabilities,
    Executor,
    ExecutorConfig,
    ForwardResult,
    KVSpec,
    ModelInfo,
    ProgressCallback,
)
from hybrid.bridge import KVLayout, KVOrder
from hybrid.scheduler.errors import ConfigError, UnsupportedFeature
from hybrid.scheduler.plan import StepPlan

from .device import available_devices, fast_dtypes, free_memory_bytes
from .host_memory import keep_freed_memory
from .kv_pool import TORCH_DTYPES, KVPool
from .step_attention import make_step_attention

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

OPTIONS: Final = {
    "kv_order": "layer_first or block_first",
    "keep_freed_memory": "true or false",
}


class TorchExecutor(Executor):
    """Runs transformers' modelling code over a paged pool."""

    def __init__(self) -> None:
        self._config = ExecutorConfig()
        self._device = torch.device("cpu")
        self._order = KVOrder.LAYER_FIRST
        self._model: PreTrainedModel | None = None
        self._pool: KVPool | None = None

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        devices = available_devices()
        return Capabilities(
            name="torch",
            description="transformers' models with paged attention, CPU and CUDA",
            devices=devices,
            dtypes=tuple(TORCH_DTYPES),
            fast_dtypes={device: fast_dtypes(device) for device in devices},
            block_sizes=(16, 32, 64, 128, 8),
            kv_orders=(KVOrder.LAYER_FIRST, KVOrder.BLOCK_FIRST),
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Load a Hugging Face directory; see ``Executor``."""
        if model is None or model.format is not CheckpointFormat.HF_DIRECTORY:
            found = "none" if model is None else f"{model.path} ({model.format})"
            raise ConfigError(
                f"executor torch: needs a Hugging Face directory, got {found}"
            )
        self._order = _kv_order(config)
        keeps_freed_memory = _keeps_freed_memory(config)
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        loaded = _load_model(model.path, config, progress)
        text_config = loaded.config.get_text_config()
        max_model_len = _needed(text_config, "max_position_embeddings")
        self._config, self._model = config, loaded
        self._device = loaded.device
        self._probe(loaded, config.max_model_len or max_model_len)
        if config.device == "cpu" and keeps_freed_memory:
            keep_freed_memory()
        return ModelInfo(
            architecture=type(loaded).__name__,
            vocab_size=_needed(text_config, "vocab_size"),
            max_model_len=max_model_len,
        )

    def kv_spec(self) -> KVSpec:
        """Sizes from the model's configuration, memory from the device."""
        config = self._loaded().config.get_text_config()
        return KVSpec(
            num_layers=_needed(config, "num_hidden_layers"),
            num_kv_heads=_num_kv_heads(config),
            head_dim=_head_dim(config),
            dtype=self._config.dtype,
            order=self._order,
            available_bytes=free_memory_bytes(self._device),
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout:
        """See ``Executor``."""
        layout = self.kv_spec().layout(num_blocks, self._config.block_size)
        self._pool = KVPool(layout, self._device)
        return layout

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> ForwardResult:
        """Run one packed forward pass."""
        model, pool = self._loaded(), self._pool
        assert pool is not None, "allocate_kv comes before execute"
        from .attention_function import STEP_KEYWORD  # noqa: PLC0415 - see load

        pool.copy_blocks(plan.block_copies)
        step = make_step_attention(plan, pool, self._device)
        pool.clear_blocks(step.begun_blocks)
        batch = step.batch
        rows = torch.from_numpy(batch.logits_rows).to(self._device)
        output = model(
            input_ids=torch.from_numpy(batch.input_ids)[None].to(self._device),
            position_ids=torch.from_numpy(batch.positions)[None].to(self._device),
            use_cache=False,
            logits_to_keep=rows,
            **{STEP_KEYWORD: step},
        )
        return ForwardResult(logits=output.logits[0].to("cpu", torch.float32))

    def close(self) -> None:
        """Drop model and pool."""
        self._model = None
        self._pool = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _probe(self, loaded: "PreTrainedModel", max_model_len: int) -> None:
        """Make the model fast, and refuse it if paging would change its answers."""
        from .model_probe import probe_model  # noqa: PLC0415 - see _load_model
        from .packed_linear import can_pack, pack_linears  # noqa: PLC0415
        from .rope_check import check_rope  # noqa: PLC0415

        check_rope(loaded.config.get_text_config(), max_model_len)
        if can_pack(loaded):
            pack_linears(loaded)
        probe_model(loaded, self.kv_spec())

    def _loaded(self) -> "PreTrainedModel":
        assert self._model is not None, "load comes first"
        return self._model


def _load_model(
    directory: Path, config: ExecutorConfig, progress: ProgressCallback | None
) -> "PreTrainedModel":
    # Imported here: transformers takes longer to import than a small model to load.
    from .attention_function import ATTENTION_NAME, register_attention  # noqa: PLC0415
    from .model_loader import load_model  # noqa: PLC0415

    register_attention()
    loaded = load_model(
        directory,
        dtype=config.dtype,
        device=config.device,
        attn_implementation=ATTENTION_NAME,
        progress=progress,
    )
    return cast("PreTrainedModel", loaded)


def _kv_order(config: ExecutorConfig) -> KVOrder:
    for name in config.options:
        if name not in OPTIONS:
            known = ", ".join(f"{key} ({value})" for key, value in OPTIONS.items())
            raise ConfigError(
                f"executor torch: unknown option {name!r}; it has {known}"
            )
    order = config.options.get("kv_order", KVOrder.LAYER_FIRST.value)
    try:
        return KVOrder(order)
    except ValueError:
        raise ConfigError(
            f"executor torch: kv_order is {order!r}, must be {OPTIONS['kv_order']}"
        ) from None


def _keeps_freed_memory(config: ExecutorConfig) -> bool:
    keeps = config.options.get("keep_freed_memory", True)
    if not isinstance(keeps, bool):
        raise ConfigError(
            f"executor torch: keep_freed_memory is {keeps!r}, must be "
            f"{OPTIONS['keep_freed_memory']}"
        )
    return keeps


def _num_kv_heads(config: "PreTrainedConfig") -> int:
    heads = _setting(config, "num_key_value_heads")
    return heads or _needed(config, "num_attention_heads")


def _head_dim(config: "PreTrainedConfig") -> int:
    explicit = _setting(config, "head_dim")
    if explicit:
        return explicit
    return _needed(config, "hidden_size") // _needed(config, "num_attention_heads")


def _setting(config: "PreTrainedConfig", name: str) -> int | None:
    """Read one number that must hold for all layers, if the configuration has it."""
    try:
        value = getattr(config, name, None)
    except Exception as error:
        # transformers raises its own error where a setting differs by layer.
        raise UnsupportedFeature(
            f"executor torch: {config.model_type}: {name} differs by layer; one pool "
            "holds one"
        ) from error
    if value is not None and not isinstance(value, int):
        raise UnsupportedFeature(
            f"executor torch: {config.model_type}: {name} is {value!r}, one pool holds "
            "one number"
        )
    return value


def _needed(config: "PreTrainedConfig", name: str) -> int:
    value = _setting(config, name)
    if not value:
        raise UnsupportedFeature(
            f"executor torch cannot run {config.model_type}: its configuration has no "
            f"{name}, so it does not attend as a decoder does"
        )
    return value
