"""The structs of ``native/abi.h``, field by field; see there for what they mean."""

import ctypes
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum, IntFlag
from typing import Final

ABI_VERSION: Final = 7
ALIGNMENT_BYTES: Final = 64
"""A cache line: of weights, of activations, of the pool's cells."""


class Format(IntEnum):
    """How numbers of a weight or an activation are stored."""

    F32 = 0
    BF16 = 1
    INT8 = 2
    INT4 = 3


class OpKind(IntEnum):
    """What a step of the plan does."""

    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROPE_KV = 3
    ATTENTION = 4
    SILU_MUL = 5
    CONVERT = 6
    SELECT_ROWS = 7


class OpFlag(IntFlag):
    """How it does it."""

    NONE = 0
    ACCUMULATE = 1
    LOGITS = 2
    ROWS = 4


class Status(IntEnum):
    """What a call returns."""

    OK = 0
    BAD_ABI = 1
    BAD_CONFIG = 2
    NO_MEMORY = 3
    BAD_STEP = 4


class Weight(ctypes.Structure):
    """A packed ``[rows, columns]`` matrix."""

    _fields_ = (
        ("format", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
    )


class Op(ctypes.Structure):
    """One step of the plan."""

    _fields_ = (
        ("kind", c_int32),
        ("flags", c_int32),
        ("layer", c_int32),
        ("weight", c_int32),
        ("norm", c_int32),
        ("norm2", c_int32),
        ("format", c_int32),
        ("width", c_int32),
        ("in", c_int64),
        ("out", c_int64),
    )


class ModelConfig(ctypes.Structure):
    """Everything about a model but its cache."""

    _fields_ = (
        ("abi_version", c_int32),
        ("variant", c_int32),
        ("num_threads", c_int32),
        ("chunk_tokens", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("num_layers", c_int32),
        ("num_ops", c_int32),
        ("num_weights", c_int32),
        ("num_vectors", c_int32),
        ("vocab_size", c_int32),
        ("norm_epsilon", c_float),
        ("attention_scale", c_float),
        ("rope_scale", c_float),
        ("unit_tokens", c_int32),
        ("batch_invariant", c_int32),
        ("reserved", c_int32),
        ("arena_bytes", c_int64),
        ("ops", POINTER(Op)),
        ("weights", POINTER(Weight)),
        ("vectors", POINTER(c_void_p)),
        ("inverse_frequencies", c_void_p),
        ("windows", c_void_p),
    )


class KvPool(ctypes.Structure):
    """Where the cache lies; strides in bytes."""

    _fields_ = (
        ("base", c_void_p),
        ("block_stride", c_int64),
        ("layer_stride", c_int64),
        ("kv_stride", c_int64),
        ("num_blocks", c_int64),
        ("format", c_int32),
        ("block_size", c_int32),
    )


class Step(ctypes.Structure):
    """One step's packed arrays."""

    _fields_ = (
        ("num_tokens", c_int32),
        ("num_seqs", c_int32),
        ("num_rows", c_int32),
        ("reserved", c_int32),
        ("input_ids", c_void_p),
        ("positions", c_void_p),
        ("query_start", c_void_p),
        ("table_start", c_void_p),
        ("block_ids", c_void_p),
        ("logits_rows", c_void_p),
        ("logits", c_void_p),
        ("seconds", POINTER(c_double)),
        ("likeliest", c_void_p),
    )
