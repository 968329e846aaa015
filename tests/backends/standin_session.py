"""A stand-in for ``tensorrt_llm.runtime``: an engine that is transformers' own model.

It refuses what TensorRT would refuse (names, dtypes, shapes outside the build's limits)
and what its attention plugin would misread (orders, lengths that contradict each
other).

Shapes are typed from TensorRT-LLM 1.2's ``models/generation_mixin.py``, meanings from
``batch_manager/runtimeBuffers.cpp``, not from the code under test.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.backends.standin_plugin import PLUGIN, PluginStep, check_step
from tests.backends.trtllm_standin import installed

DataType = Enum("DataType", ["FLOAT", "HALF", "BF16", "INT32", "INT64"])
TensorIOMode = Enum("TensorIOMode", ["INPUT", "OUTPUT"])
TORCH = {
    DataType.FLOAT: torch.float32,
    DataType.HALF: torch.float16,
    DataType.BF16: torch.bfloat16,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
}
BY_NAME = {
    "float32": DataType.FLOAT,
    "float16": DataType.HALF,
    "bfloat16": DataType.BF16,
}
Limits = tuple[tuple[int, int], ...]
"""Of each axis, the least and the most that the build allows."""


@dataclass
class TensorInfo:
    """As the real one: name, TensorRT's dtype, shape."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]


@dataclass
class StandInEngine:
    """What ``ICudaEngine`` tells of itself."""

    tensors: Mapping[str, tuple[TensorIOMode, DataType, Limits]]

    @property
    def num_io_tensors(self) -> int:
        """Inputs and outputs together."""
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        """Name one of them."""
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        """Tell inputs from outputs."""
        return self.tensors[name][0]

    def get_tensor_dtype(self, name: str) -> DataType:
        """Of its numbers."""
        return self.tensors[name][1]


class Session:
    """Sets shapes, then addresses, then runs."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.steps: list[dict[str, torch.Tensor]] = []
        """Copies of the inputs of every step."""

    @staticmethod
    def from_serialized_engine(engine: bytes) -> "Session":
        """Read what ``build_standin_engine`` wrote."""
        session = Session()
        session._load(json.loads(engine))
        return session

    def _load(self, content: dict[str, Any]) -> None:
        config = content["config"]
        self.build = config["build_config"]
        self.sizes = config["pretrained_config"]
        dtype = TORCH[BY_NAME[self.sizes["dtype"]]]
        # Not from_pretrained: the threads that it loads with may outlive its return.
        weights = Path(content["weights"])
        self.model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(weights),
            dtype=dtype,
            attn_implementation=PLUGIN,
        ).eval()
        parameters = load_file(weights / "model.safetensors")
        absent = self.model.load_state_dict(parameters, strict=False).missing_keys
        assert set(absent) <= set(self.model.all_tied_weights_keys)
        self.model.tie_weights()
        tensors = self._tensors()
        for name in content["without"]:
            del tensors[name]
        for name, (mode, dtype) in content["more_tensors"].items():
            tensors[name] = (TensorIOMode[mode], DataType[dtype], ((1, 1),))
        self.engine = StandInEngine(tensors)

    def _tensors(self) -> dict[str, Any]:
        build, layers = self.build, self.sizes["num_hidden_layers"]
        seqs, tokens = (1, build["max_batch_size"]), (1, build["max_num_tokens"])
        size = build["plugin_config"]["tokens_per_block"]
        blocks = (1, -(-build["max_seq_len"] // size))
        pools = (1, layers)
        offsets = (pools, seqs, (2, 2), blocks)
        int32: dict[str, Limits] = {
            "input_ids": (tokens,),
            "position_ids": (tokens,),
            "last_token_ids": (seqs,),
            "sequence_length": (seqs,),
            "context_lengths": (seqs,),
            "host_context_lengths": (seqs,),
            "host_past_key_value_lengths": (seqs,),
            "host_request_types": (seqs,),
            "host_max_attention_window_sizes": ((layers, layers),),
            "host_sink_token_length": ((1, 1),),
            "cache_indirection": (seqs, (1, 1), (1, build["max_seq_len"])),
            "kv_cache_block_offsets": offsets,
            "host_kv_cache_block_offsets": offsets,
            "host_kv_cache_pool_mapping": ((layers, layers), (2, 2)),
        }
        int64: dict[str, Limits] = {
            "host_kv_cache_pool_pointers": (pools, (2, 2)),
            "host_runtime_perf_knobs": ((16, 16),),
            "host_context_progress": ((1, 1),),
        }
        if build["gather_context_logits"]:
            del int32["last_token_ids"]
        vocab = (self.sizes["vocab_size"],) * 2
        logits = BY_NAME[self.sizes["logits_dtype"]]
        return {
            **{n: (TensorIOMode.INPUT, DataType.INT32, s) for n, s in int32.items()},
            **{n: (TensorIOMode.INPUT, DataType.INT64, s) for n, s in int64.items()},
            "logits": (TensorIOMode.OUTPUT, logits, (tokens, vocab)),
        }

    def infer_shapes(self, inputs: Sequence[TensorInfo]) -> list[TensorInfo]:
        """Fix the inputs' shapes; the outputs' follow.

        Raises:
            ValueError: no such input, or of another dtype.
            RuntimeError: outside the limits of the build.
        """
        for info in inputs:
            mode, dtype, limits = self.engine.tensors[info.name]
            if mode != TensorIOMode.INPUT:
                raise ValueError(f"Tensor:{info.name} is not an input tensor")
            if dtype != info.dtype:
                raise ValueError(f"Tensor:{info.name} has wrong dtype")
            fits = len(limits) == len(info.shape) and all(
                least <= size <= most
                for size, (least, most) in zip(info.shape, limits, strict=True)
            )
            if not fits:
                raise RuntimeError(
                    f"Could not set shape {info.shape} for tensor {info.name}"
                )
            self.shapes[info.name] = info.shape
        rows = self.shapes.get("last_token_ids", self.shapes["input_ids"])[0]
        _, dtype, (_, (columns, _)) = self.engine.tensors["logits"]
        return [TensorInfo("logits", dtype, (rows, columns))]

    def run(
        self,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        stream: int,
    ) -> bool:
        """Check every tensor, compute, write the logits."""
        assert isinstance(stream, int)
        names = {
            name
            for name, (mode, *_) in self.engine.tensors.items()
            if mode == TensorIOMode.INPUT
        }
        assert set(inputs) == names, f"inputs {set(inputs) ^ names} lack or are strange"
        for name, tensor in inputs.items():
            assert tensor.is_contiguous(), f"{name} has gaps, which an address hides"
            assert tensor.dtype == TORCH[self.engine.get_tensor_dtype(name)], name
            assert tuple(tensor.shape) == self.shapes[name], f"{name} changed its shape"
        self.steps.append({name: tensor.clone() for name, tensor in inputs.items()})
        step = PluginStep(
            inputs=inputs,
            num_kv_heads=self.sizes["num_key_value_heads"],
            head_dim=self.sizes["head_size"],
            block_size=self.build["plugin_config"]["tokens_per_block"],
            kv_dtype=self._kv_dtype(),
        )
        check_step(step)
        logits = self._compute(step)
        (output,) = outputs.values()
        assert output.shape == logits.shape
        assert output.dtype == TORCH[self.engine.get_tensor_dtype("logits")]
        output.copy_(logits)
        return True

    def _kv_dtype(self) -> torch.dtype:
        own = TORCH[BY_NAME[self.sizes["dtype"]]]
        kinds = {None: own, "FP8": torch.float8_e4m3fn, "INT8": torch.int8}
        return kinds[self.sizes["quantization"]["kv_cache_quant_algo"]]

    def _compute(self, step: PluginStep) -> torch.Tensor:
        ids, positions = step.inputs["input_ids"], step.inputs["position_ids"]
        last = step.inputs.get("last_token_ids")
        output = self.model(
            input_ids=ids[None].long(),
            position_ids=positions[None].long(),
            use_cache=False,
            logits_to_keep=0 if last is None else last.long() - 1,
            plugin_step=step,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


@dataclass
class Seen:
    """What happened in the stand-in package."""

    sessions: list[Session] = field(default_factory=list)
    """All that were opened."""
    num_plugin_loads: int = 0
    """How often the library of attention was loaded."""


@contextmanager
def installed_runtime(version: str = "1.2.1") -> Iterator[Seen]:
    """Put the stand-in package where ``import`` looks, with sessions in it."""
    seen = Seen()

    class Watched(Session):
        """Remembers who was opened."""

        @staticmethod
        def from_serialized_engine(engine: bytes) -> Session:
            """As ``Session`` does; without its library TensorRT knows no attention."""
            assert seen.num_plugin_loads, "the plugin is not loaded"
            session = Session.from_serialized_engine(engine)
            seen.sessions.append(session)
            return session

    def load_plugin() -> None:
        seen.num_plugin_loads += 1

    with installed(version) as package:
        package.plugin._load_plugin_lib = load_plugin
        package.runtime.Session = Watched
        package.runtime.TensorInfo = TensorInfo
        yield seen
