"""TensorRT-LLM's attention operator without a GPU: refuses, writes, attends."""

from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from tests.backends.standin_paged_attention import PagedStep, write_and_attend
from tests.backends.standin_signatures import StandInArgument, arguments_of, printed
from tests.backends.standin_thop_checks import CHECKS, layer_of, require

FROZEN = """
    num_heads num_kv_heads head_size tokens_per_block max_num_requests
    max_context_length attention_window_size quant_mode q_scaling
"""
"""The operator keeps one plan per configuration; a later, larger one is not made."""
STABLE = """
    sequence_length context_lengths kv_cache_block_offsets host_kv_cache_pool_pointers
"""
"""What a captured graph has by address."""
_NUMBERS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "torch.Tensor": (torch.Tensor,),
    "torch.dtype": (torch.dtype,),
}


class StandInAttention:
    """Called as the operator of one era is, and remembers its last call."""

    def __init__(self, era: str) -> None:
        self.arguments = arguments_of(era)
        self.__doc__ = printed(self.arguments)
        self.num_calls = 0
        self.last: dict[str, Any] = {}
        """The last call's arguments, by name."""
        # By workspace: whoever loads a second model brings one of its own.
        self._kept = WeakTensorKeyDictionary()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Check everything, then do what the kernels do.

        Raises:
            TypeError: an argument is missing, unknown or of another type.
            RuntimeError: an argument would be misread.
        """
        given = self._bind(args, kwargs)
        for check in CHECKS:
            check(given)
        self._check_kept(given)
        self.num_calls += 1
        self.last = given
        given["output"].copy_(write_and_attend(_paged_step(given), given["q"]))

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = [argument.name for argument in self.arguments]
        if len(args) > len(names) or set(kwargs) - set(names[len(args) :]):
            raise TypeError("attention(): incompatible function arguments")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for argument in self.arguments:
            if argument.name in given:
                _check_kind(argument, given[argument.name])
            elif argument.default is None:
                raise TypeError(f"attention(): {argument.name} is missing")
            elif argument.default == "None":
                given[argument.name] = None
        return given

    def _check_kept(self, given: dict[str, Any]) -> None:
        own = {name: given[name] for name in FROZEN.split()}
        own |= {name: given[name].data_ptr() for name in STABLE.split()}
        kept = self._kept.setdefault(given["workspace_"], own)
        changed = [name for name in own if own[name] != kept[name]]
        require(not changed, f"{', '.join(changed)} changed since the first call")


def _check_kind(argument: StandInArgument, value: Any) -> None:
    if value is None and argument.may_be_none:
        return
    kinds = _NUMBERS.get(argument.kind, (list, tuple))
    is_flag = isinstance(value, bool) and argument.kind != "bool"
    if not isinstance(value, kinds) or is_flag:
        raise TypeError(
            f"attention(): {argument.name} must be {argument.kind}, is {value!r}"
        )


def _paged_step(given: dict[str, Any]) -> PagedStep:
    pool, layer = given["host_kv_cache_pool_mapping"][layer_of(given)].tolist()
    seq_lens = given["sequence_length"].tolist()
    kinds = given["host_request_types"].tolist()
    contexts = given["context_lengths"].tolist()
    pairs = zip(kinds, contexts, strict=True)
    is_fp8 = given["quant_mode"] != 0
    head_dim = given["head_size"]
    return PagedStep(
        pointer=int(given["host_kv_cache_pool_pointers"][pool, 0]),
        layer_in_pool=layer,
        offsets=np.asarray(given["kv_cache_block_offsets"][pool].cpu()),
        query_lens=[1 if kind else context for kind, context in pairs],
        seq_lens=seq_lens,
        num_heads=given["num_heads"],
        num_kv_heads=given["num_kv_heads"],
        head_dim=head_dim,
        block_size=given["tokens_per_block"],
        stored=torch.float8_e4m3fn if is_fp8 else given["q"].dtype,
        scale=1 / (given["q_scaling"] * head_dim**0.5),
        kv_scale=float(given["kv_scale_quant_orig"]) if is_fp8 else 1.0,
    )
