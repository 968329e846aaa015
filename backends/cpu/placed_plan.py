"""A plan whose buffers have their places: the ops as the kernels take them."""

from dataclasses import dataclass

from .memory_plan import MemoryPlan, plan_memory
from .plan import ModelPlan, PlannedOp


@dataclass(frozen=True, slots=True)
class PlacedOp:
    """One op, every field as ``abi.Op`` has it: ``Op(*dataclasses.astuple(op))``."""

    kind: int
    flags: int
    layer: int
    weight: int
    norm: int
    norm2: int
    format: int
    width: int
    source_offset: int
    """Bytes into the arena, or -1."""
    target_offset: int


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """Ops, and the arena that they work in."""

    ops: tuple[PlacedOp, ...]
    arena_bytes: int
    """Activations, buffers shared."""
    unshared_arena_bytes: int
    """The same if every activation had a place of its own."""


def place_plan(plan: ModelPlan, unit_tokens: int) -> PlacedPlan:
    """Give each buffer ``unit_tokens`` rows and a place."""
    places = plan_memory(plan.lifetimes(unit_tokens))
    return PlacedPlan(
        tuple(_placed(op, places) for op in plan.ops),
        places.arena_bytes,
        places.unshared_bytes,
    )


def _placed(op: PlannedOp, places: MemoryPlan) -> PlacedOp:
    def number(value: int | None) -> int:
        return -1 if value is None else value

    def offset(buffer: int | None) -> int:
        return -1 if buffer is None else places.offsets[buffer]

    return PlacedOp(
        kind=op.kind,
        flags=op.flags,
        layer=op.layer,
        weight=number(op.weight),
        norm=number(op.norm),
        norm2=number(op.key_norm),
        format=op.format,
        width=op.width,
        source_offset=offset(op.reads),
        target_offset=offset(op.writes),
    )
