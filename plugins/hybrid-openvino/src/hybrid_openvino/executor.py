"""The OpenVINO executor: a compiled model whose paged attention reads our blocks."""

from collections.abc import Mapping
from typing import Final

import openvino as ov

from hybrid.api import (
    Capabilities,
    CheckpointFormat,
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
    StepPlan,
    free_host_memory_bytes,
)

from .ir_directory import MODEL_FILE, load_ir
from .kv_pool import CellShape, KVPool
from .options import PRECISIONS, parse_options
from .paged_model import DEVICE, PagedModel
from .runtime import core
from .step_inputs import StepInputMaker

BLOCK_SIZE: Final = 32
"""Tokens per block of OpenVINO's paged attention on CPUs; it knows no other."""
_PLAIN_DTYPES: Final = {
    ov.Type.f32: "float32",
    ov.Type.bf16: "bfloat16",
    ov.Type.f16: "float16",
}
_CAPABILITY: Final = {"float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}


class OpenVINOExecutor(Executor):
    """Runs checkpoints, converted once, and OpenVINO IR directories."""

    def __init__(self) -> None:
        self._model: PagedModel | None = None
        self._pool: KVPool | None = None
        self._inputs = StepInputMaker(BLOCK_SIZE)

    def capabilities(self) -> Capabilities:
        """See ``Executor``."""
        can = core().get_property(DEVICE, "OPTIMIZATION_CAPABILITIES")
        dtypes = tuple(name for name in PRECISIONS if _CAPABILITY[name] in can)
        # 16 bits first: where OpenVINO offers them, they are what it is fast in.
        return Capabilities(
            name="openvino",
            description="OpenVINO's compiled models and paged attention",
            devices=("cpu",),
            dtypes=dtypes,
            fast_dtypes={"cpu": tuple(reversed(dtypes))},
            block_sizes=(BLOCK_SIZE,),
            kv_orders=(KVOrder.LAYER_FIRST,),
            model_files=(MODEL_FILE,),
        )

    def load(
        self,
        model: ModelSource | None,
        config: ExecutorConfig,
        progress: ProgressCallback | None = None,
    ) -> ModelInfo:
        """Convert a checkpoint (once) or read an IR, and compile it."""
        if model is None:
            raise ConfigError("executor openvino: needs a model, got none")
        if config.block_size != BLOCK_SIZE:
            raise ConfigError(
                f"executor openvino: block_size is {config.block_size}, OpenVINO's "
                f"paged attention on CPUs knows {BLOCK_SIZE} only"
            )
        is_compiled = model.format is CheckpointFormat.COMPILED
        options = parse_options(config, _properties(), is_compiled=is_compiled)
        ir = load_ir(model, options, config, progress)
        self._model = PagedModel(ir.model, ir.windows, options.properties)
        return ModelInfo(
            architecture=ir.architecture,
            vocab_size=self._model.vocab_size,
            max_model_len=ir.max_model_len,
        )

    def kv_spec(self) -> KVSpec:
        """Sizes of the compiled model's cache inputs."""
        model = self._loaded()
        key, value = model.key_cell, model.value_cell
        is_plain = _is_plain(key) and key == value
        return KVSpec(
            num_layers=model.num_layers,
            num_kv_heads=key.dims[0],
            head_dim=key.dims[2],
            dtype=_PLAIN_DTYPES.get(key.element_type, key.element_type.to_string()),
            order=KVOrder.LAYER_FIRST,
            available_bytes=free_host_memory_bytes(),
            cell_bytes=None if is_plain else key.num_bytes + value.num_bytes,
        )

    def allocate_kv(self, num_blocks: int) -> KVLayout | None:
        """See ``Executor``."""
        model, spec = self._loaded(), self.kv_spec()
        self._pool = KVPool(
            model.key_cell, model.value_cell, model.num_layers, num_blocks
        )
        model.bind(self._pool)
        if spec.cell_bytes is not None:
            return None
        return spec.layout(num_blocks, BLOCK_SIZE)

    def execute(self, plan: StepPlan) -> ForwardResult:
        """Copy blocks, then one inference over the whole step."""
        assert self._pool is not None, "allocate_kv comes before execute"
        self._pool.copy_blocks(plan.block_copies)
        return ForwardResult(self._loaded().run(self._inputs.make(plan)))

    def close(self) -> None:
        """Drop model and pool."""
        self._model = None
        self._pool = None

    def _loaded(self) -> PagedModel:
        assert self._model is not None, "load comes first"
        return self._model


def _properties() -> Mapping[str, str]:
    found: Mapping[str, str] = core().get_property(DEVICE, "SUPPORTED_PROPERTIES")
    return found


def _is_plain(cell: CellShape) -> bool:
    return cell.element_type in _PLAIN_DTYPES and cell.dims[1] == BLOCK_SIZE
