"""Which format each matrix of an engine gets."""

from collections.abc import Iterable
from typing import Final

from .abi import Format
from .build_options import AUTO, BuildOptions
from .parameters import Parameters
from .plan import EMBEDDING, HEAD, QKV, WeightSpec
from .weights_file import FormattedWeight

_FORMATS: Final = {
    "fp32": Format.F32,
    "bf16": Format.BF16,
    "int8": Format.INT8,
    "int4": Format.INT4,
}


def settle_quantization(
    options: BuildOptions, parameters: Parameters, specs: Iterable[WeightSpec]
) -> str:
    """Take what was asked for; of ``auto``, four bits where the file has four."""
    if options.asked_quantization != AUTO:
        return options.asked_quantization
    return "int4" if _is_four_bit(parameters, specs) else "int8"


def choose_formats(
    quantization: str, parameters: Parameters, specs: Iterable[WeightSpec]
) -> tuple[FormattedWeight, ...]:
    """Give every matrix its format.

    All get the one asked for, but beside int4: there what four bits hurt most gets
    int8. In a file of four-bit blocks that is every matrix with a part in another kind:
    it was worth more bits to its maker. Elsewhere it is the table of embeddings, the
    head, and queries, keys and values (a seventh of SmolLM2's layers and, seen on a
    proxy of its unquantised weights, a third of the perplexity that four bits cost).
    """
    form, specs = _FORMATS[quantization], tuple(specs)
    if form is not Format.INT4:
        return tuple(FormattedWeight(spec, form) for spec in specs)
    if _is_four_bit(parameters, specs):
        return tuple(
            FormattedWeight(spec, Format.INT4, keeps_groups=True)
            if _has_int4_groups(parameters, spec)
            else FormattedWeight(spec, Format.INT8)
            for spec in specs
        )
    return tuple(
        FormattedWeight(spec, Format.INT8 if _is_delicate(spec) else Format.INT4)
        for spec in specs
    )


def _is_delicate(spec: WeightSpec) -> bool:
    return spec.name in (EMBEDDING, HEAD) or spec.name.endswith(QKV)


def _has_int4_groups(parameters: Parameters, spec: WeightSpec) -> bool:
    formats = {parameters.group_format(f"{part}.weight") for part in spec.parts}
    return formats == {Format.INT4}


def _is_four_bit(parameters: Parameters, specs: Iterable[WeightSpec]) -> bool:
    """Whether most of what the layers multiply with has four bits."""
    total = grouped = 0
    for spec in specs:
        if spec.name not in (EMBEDDING, HEAD):
            size = spec.rows * spec.columns
            total += size
            grouped += size * _has_int4_groups(parameters, spec)
    return 2 * grouped > total
