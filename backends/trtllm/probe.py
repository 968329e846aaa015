"""Chooses who attends: asks each implementation in turn, keeps every answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hybrid.backends.interface import Implementation
from hybrid.scheduler.errors import ConfigError

from .attention import Attention, AttentionNeeds
from .machine import Machine


def _thop() -> type[Attention]:
    from .thop_attention import ThopAttention  # noqa: PLC0415 - when asked

    return ThopAttention


def _flashinfer() -> type[Attention]:
    from .flashinfer_attention import FlashInferAttention  # noqa: PLC0415 - when asked

    return FlashInferAttention


def _torch() -> type[Attention]:
    from .torch_attention import TorchAttention  # noqa: PLC0415 - when asked

    return TorchAttention


IMPLEMENTATIONS: Final[Mapping[str, Callable[[], type[Attention]]]] = {
    "thop": _thop,
    "flashinfer": _flashinfer,
    "torch": _torch,
}
"""By the option's name, the preferred first."""


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Who attends, and why not those that are preferred."""

    name: str
    attention: type[Attention]
    reasons: Mapping[str, str]
    """By name, why an implementation was passed over."""


def explain(machine: Machine) -> tuple[Implementation, ...]:
    """Ask all whether they could serve some model on this machine."""
    from .engine_refusal import engine_refusal  # noqa: PLC0415 - when asked

    engine = Implementation(
        name="engine",
        description="taken where the model is an engine that trtllm-build made",
        reason=engine_refusal(machine),
    )
    attentions = tuple(
        Implementation(
            name=name,
            description=find().description,
            reason=find().refusal(machine, None),
        )
        for name, find in IMPLEMENTATIONS.items()
    )
    return (*attentions, engine)


def choose_attention(
    wanted: str, machine: Machine, needs: AttentionNeeds
) -> AttentionChoice:
    """Take the one that was asked for, or the first that can.

    Args:
        wanted: a name in ``IMPLEMENTATIONS``, or ``auto``.
        machine: what there is.
        needs: of the loaded model.

    Raises:
        ConfigError: the one asked for cannot serve; says why.
    """
    names = list(IMPLEMENTATIONS) if wanted == "auto" else [wanted]
    reasons: dict[str, str] = {}
    for name in names:
        attention = IMPLEMENTATIONS[name]()
        reason = attention.refusal(machine, needs)
        if reason is None:
            return AttentionChoice(name, attention, reasons)
        reasons[name] = reason
    # Of auto there is always one that can.
    raise ConfigError(
        f"executor tensorrt_llm: attention {wanted!r} cannot serve: {reasons[wanted]} "
        "(`hybrid executors --explain` lists what can)"
    )
