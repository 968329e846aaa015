"""The compile step: a checkpoint becomes an engine directory."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from hybrid.backends.checkpoint.config_sizes import check_config_sizes
from hybrid.backends.checkpoint.json_file import read_json_object
from hybrid.backends.checkpoint.model_source import (
    CheckpointFormat,
    ModelSource,
    original_source,
)
from hybrid.backends.checkpoint.safetensors_index import check_safetensors
from hybrid.backends.interface import ProgressCallback
from hybrid.scheduler.errors import CheckpointError, ConfigError, UnsupportedFeature

from .abi import ABI_VERSION, Format
from .build_options import BuildOptions
from .config_reading import read_shape
from .engine_directory import (
    ENGINE_VERSION,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    config_digest,
)
from .format_choice import choose_formats, settle_quantization
from .model_shape import CpuModelShape
from .parameters import Parameters, SafetensorsParameters
from .placed_plan import place_plan
from .plan import EMBEDDING, ModelPlan, WeightSpec, plan_model, weight_specs
from .weights_file import FormattedWeight, write_weights

UNIT_TOKENS: Final = 64
"""Tokens that share an arena: enough for the large products, few enough for the cache
of one core."""
_COPIED_SUFFIXES: Final = (".json", ".jinja", ".model", ".txt")
_COMPARED_ROWS: Final = 4096
_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
_UNUSED_SUFFIX: Final = "rotary_emb.inv_freq"
"""Old files hold the rotary frequencies, which transformers ignores."""


def build_engine_directory(
    source: ModelSource,
    options: BuildOptions,
    target: Path,
    progress: ProgressCallback | None = None,
) -> None:
    """Build ``source`` into the existing, empty directory ``target``.

    Args:
        source: a Hugging Face directory; its GGUF, where it was made from one, is where
            the numbers are read from.
        options: what is wanted.
        target: where to.
        progress: called with stage ``build`` and bytes written.

    Raises:
        UnsupportedFeature: the kernels cannot run this model; says why.
        CheckpointError: the files are at fault.
        ConfigError: ``source`` is no Hugging Face directory.
        OSError: ``target`` cannot be written.
    """
    if source.format is not CheckpointFormat.HF_DIRECTORY:
        raise ConfigError(
            f"an engine is built from a checkpoint; {source.path} is {source.format}"
        )
    parameters = _open(source)
    shape = read_shape(source.path, ties_embeddings=_ties_embeddings(parameters))
    specs = weight_specs(shape)
    quantization = settle_quantization(options, parameters, specs)
    weights = choose_formats(quantization, parameters, specs)
    plan = plan_model(shape, {w.spec.name: w.format for w in weights})
    _check_parameters(parameters, specs, plan.vectors)

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("build", done, total)

    weights = _with_importance(weights, source.path)
    write_weights(target / WEIGHTS_NAME, parameters, weights, plan.vectors, report)
    _copy_files(source.path, target)
    manifest = _manifest(shape, plan, weights) | {
        "source": str(original_source(source).path.resolve()),
        "source_fingerprint": original_source(source).fingerprint,
        "config_sha256": config_digest(target),
        "quantization": quantization,
        "auto_quantization": settle_quantization(BuildOptions(), parameters, specs),
        "kv_cache_dtype": options.settled_kv_cache_dtype(quantization),
    }
    (target / MANIFEST_NAME).write_text(json.dumps(manifest) + "\n")


def find_auto_quantization(source: ModelSource) -> str:
    """Say what ``auto`` comes to for a Hugging Face directory; reads no weight.

    Raises:
        UnsupportedFeature: the kernels cannot run this model; says why.
        CheckpointError: the files are at fault.
    """
    parameters = _open(source)
    shape = read_shape(source.path, ties_embeddings=_ties_embeddings(parameters))
    return settle_quantization(BuildOptions(), parameters, weight_specs(shape))


def _open(source: ModelSource) -> Parameters:
    """Read from the GGUF itself where there is one: its conversion may have rounded."""
    config = read_json_object(source.path / "config.json")
    if config is None:
        raise CheckpointError(f"{source.path} has no config.json")
    if source.origin is not None:
        # Imported here: gguf is not there for those who never had such a file.
        from .gguf_blocks import GGUFParameters  # noqa: PLC0415

        return GGUFParameters(source.origin, config)
    summary = check_safetensors(source.path)
    check_config_sizes(source.path / "config.json", config, summary)
    return SafetensorsParameters(source.path)


def _ties_embeddings(parameters: Parameters) -> bool | None:
    """Whether the head is the embeddings' table; ``None``: the configuration says.

    Files that hold another head win over a configuration that ties it.
    """
    shapes = parameters.shapes
    if _HEAD not in shapes or _EMBEDDING not in shapes:
        return None
    rows = range(0, shapes[_HEAD][0], _COMPARED_ROWS)
    parts = (slice(row, row + _COMPARED_ROWS) for row in rows)
    return shapes[_HEAD] == shapes[_EMBEDDING] and all(
        np.array_equal(parameters.read(_HEAD, part), parameters.read(_EMBEDDING, part))
        for part in parts
    )


def _with_importance(
    weights: tuple[FormattedWeight, ...], directory: Path
) -> tuple[FormattedWeight, ...]:
    """Measure what four bits of our own making are fitted to."""
    if all(w.keeps_groups or w.format is not Format.INT4 for w in weights):
        return weights
    # Imported here: other builds need no torch model.
    from .input_importance import measure_importance  # noqa: PLC0415

    found = measure_importance(directory)
    # Parts that are joined multiply the same input.
    return tuple(
        replace(weight, importance=found[f"{weight.spec.parts[0]}.weight"])
        if weight.spec.name != EMBEDDING
        else weight
        for weight in weights
    )


def _check_parameters(
    parameters: Parameters, specs: tuple[WeightSpec, ...], vectors: Mapping[str, int]
) -> None:
    """Refuse files that hold other parameters than the plan reads."""
    expected: dict[str, tuple[int, ...]] = {
        name: (length,) for name, length in vectors.items()
    }
    for spec in specs:
        for part, rows in zip(spec.parts, spec.part_rows, strict=True):
            expected[f"{part}.weight"] = (rows, spec.columns)
            if spec.has_bias:
                expected[f"{part}.bias"] = (rows,)
    found = {
        name: shape
        for name, shape in parameters.shapes.items()
        if not name.endswith(_UNUSED_SUFFIX)
    }
    if _HEAD not in expected:
        found.pop(_HEAD, None)  # equal to the embeddings
    if faults := sorted(
        name
        for name in found.keys() | expected.keys()
        if found.get(name) != expected.get(name)
    ):
        name = faults[0]
        raise UnsupportedFeature(
            f"{len(faults)} parameters are not those of the plan; {name} has shape "
            f"{found.get(name)} in the files and {expected.get(name)} in the plan "
            "(None: it is not there)"
        )


def _copy_files(source: Path, target: Path) -> None:
    """Take along what makes the directory a model: configuration and tokenizer."""
    for file in sorted(source.iterdir()):
        is_index = file.name.endswith(".index.json")
        if file.suffix in _COPIED_SUFFIXES and not is_index and file.is_file():
            shutil.copyfile(file, target / file.name)


def _manifest(
    shape: CpuModelShape, plan: ModelPlan, weights: tuple[FormattedWeight, ...]
) -> dict[str, Any]:
    placed = place_plan(plan, UNIT_TOKENS)
    return {
        "engine_version": ENGINE_VERSION,
        "kernel_version": ABI_VERSION,
        "unit_tokens": UNIT_TOKENS,
        "arena_bytes": placed.arena_bytes,
        "shape": asdict(shape),
        "ops": [astuple(op) for op in placed.ops],
        "weights": [
            {
                "name": weight.spec.name,
                "form": weight.format.name,
                "rows": weight.spec.rows,
                "columns": weight.spec.columns,
            }
            for weight in weights
        ],
        "vectors": plan.vectors,
    }
