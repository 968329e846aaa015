"""What a compiled TensorRT engine says of itself: the config.json beside it.

A directory as ``trtllm-build`` leaves it: config.json (``pretrained_config`` of the
model, ``build_config`` of the build, ``version`` of the builder) and one
``rank<n>.engine`` for each GPU.

Source: TensorRT-LLM 1.2, ``builder.py`` (``EngineConfig``, ``BuildConfig``) and
``models/modeling_utils.py`` (``PretrainedConfig``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.scheduler.errors import CheckpointError, UnsupportedFeature
from hybrid.scheduler.shown_value import shown

ENGINE_FILE: Final = "rank0.engine"
_CONFIG_FILE: Final = "config.json"
_MAX_SIZE: Final = 2**31 - 1
_KV_DTYPES: Final = {"FP8": "float8_e4m3fn", "INT8": "int8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """One compiled model, and the limits that were compiled into it."""

    path: Path
    """The directory."""
    version: str
    """Of the TensorRT-LLM that built it, and alone can run it."""
    architecture: str
    """As Hugging Face names the model's class."""
    dtype: str
    """Of weights and activations."""
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    """Of all GPUs together."""
    head_dim: int
    kv_quantization: str | None
    """TensorRT-LLM's name of it; ``None``: K and V are stored in ``dtype``."""
    num_ranks: int
    """GPUs that it was built for."""
    block_size: int
    """``tokens_per_block``: tokens of a KV block."""
    max_batch_size: int
    """Most sequences of a step."""
    max_num_tokens: int
    """Most tokens of a step."""
    max_seq_len: int
    """Most tokens of a sequence, prompt and answer."""
    max_beam_width: int
    max_draft_len: int
    """Most draft tokens of a sequence in a step."""
    is_paged: bool
    has_attention_plugin: bool
    removes_input_padding: bool
    """Whether it takes a step's tokens end to end."""
    reads_cached_context: bool
    """``use_paged_context_fmha``: whether a prompt's tokens attend to what lies in
    blocks already."""
    has_multiple_profiles: bool

    @property
    def kv_dtype(self) -> str:
        """Of one number in the pool, by torch's name.

        Raises:
            UnsupportedFeature: it is kept in a form that no pool here has.
        """
        if self.kv_quantization is None:
            return self.dtype
        if self.kv_quantization not in _KV_DTYPES:
            raise UnsupportedFeature(
                f"{self.path}: its KV cache is {shown(self.kv_quantization)}, must be "
                f"one of {', '.join(_KV_DTYPES)} or not quantised"
            )
        return _KV_DTYPES[self.kv_quantization]


def read_engine_config(directory: Path) -> BuiltEngine:
    """Read the config.json of an engine's directory.

    Raises:
        CheckpointError: the file is absent, or a field is absent or malformed; names
            the field and its value.
        UnsupportedFeature: the layers differ in their number of KV heads.
    """
    path = directory / _CONFIG_FILE
    content = read_json_object(path)
    if content is None:
        raise CheckpointError(
            f"{directory} has no {_CONFIG_FILE}, which trtllm-build writes beside "
            f"{ENGINE_FILE}"
        )
    top = _Section(path, "", content)
    model, build = top.section("pretrained_config"), top.section("build_config")
    plugins = build.section("plugin_config")
    return BuiltEngine(
        path=directory,
        version=top.text("version"),
        architecture=model.text("architecture"),
        dtype=model.text("dtype"),
        vocab_size=model.size("vocab_size"),
        num_layers=model.size("num_hidden_layers"),
        num_kv_heads=_num_kv_heads(model),
        head_dim=model.size("head_size"),
        kv_quantization=model.section("quantization").optional_text(
            "kv_cache_quant_algo"
        ),
        num_ranks=model.section("mapping").size("world_size"),
        block_size=plugins.size("tokens_per_block"),
        max_batch_size=build.size("max_batch_size"),
        max_num_tokens=build.size("max_num_tokens"),
        max_seq_len=build.size("max_seq_len"),
        max_beam_width=build.size("max_beam_width"),
        max_draft_len=build.size("max_draft_len", least=0, default=0),
        is_paged=_is_paged(build, plugins),
        has_attention_plugin=plugins.optional_text("gpt_attention_plugin") is not None,
        removes_input_padding=plugins.flag("remove_input_padding"),
        # The latter without the former is dropped in silence.
        reads_cached_context=plugins.flag("context_fmha", default=True)
        and plugins.flag("use_paged_context_fmha"),
        has_multiple_profiles=plugins.flag("multiple_profiles", default=False),
    )


def _num_kv_heads(model: "_Section") -> int:
    by_layer = model.values.get("num_kv_heads_per_layer")
    if isinstance(by_layer, list) and len(set(map(repr, by_layer))) > 1:
        raise UnsupportedFeature(
            f"{model.path}: num_kv_heads_per_layer is {shown(by_layer)}, one pool "
            "holds layers of one number"
        )
    return model.size("num_key_value_heads")


def _is_paged(build: "_Section", plugins: "_Section") -> bool:
    """Early versions have a flag of the plugin, later ones a kind of cache."""
    kind = build.optional_text("kv_cache_type")
    if kind is None:
        return plugins.flag("paged_kv_cache")
    return kind.rpartition(".")[2].upper() == "PAGED"


@dataclass(frozen=True, slots=True)
class _Section:
    """An object of the file; what is absent or of another kind is named."""

    path: Path
    name: str
    """Of the object, with a dot at its end, or empty."""
    values: Mapping[str, object]

    def section(self, key: str) -> "_Section":
        value = self.values.get(key)
        if not isinstance(value, dict):
            self._fail(key, "an object")
        return _Section(self.path, f"{self.name}{key}.", value)

    def text(self, key: str) -> str:
        value = self.optional_text(key)
        if value is None:
            self._fail(key, "a text")
        return value

    def optional_text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value:
            self._fail(key, "a text")
        return value

    def size(self, key: str, *, least: int = 1, default: int | None = None) -> int:
        value = self.values.get(key, default)
        must_be = f"a whole number from {least} to {_MAX_SIZE:,}"
        # True is an int, and no size.
        if isinstance(value, bool) or not isinstance(value, int):
            self._fail(key, must_be)
        if not least <= value <= _MAX_SIZE:
            self._fail(key, must_be)
        return value

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self._fail(key, "true or false")
        return value

    def _fail(self, key: str, must_be: str) -> NoReturn:
        found = shown(self.values[key]) if key in self.values else "absent"
        raise CheckpointError(
            f"{self.path}: {self.name}{key} is {found}, must be {must_be}"
        )
