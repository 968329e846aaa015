"""One call of TensorRT-LLM's attention operator, told as its era wants to be told.

Values go by the operator's own names. Those that stay are laid out once and the step's
once per step, so that a layer changes three of some hundred.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import torch

from .thop_signature import InstalledThop


class ThopCall(ABC):
    """Calls the operator, layer after layer, for one model."""

    @abstractmethod
    def begin_step(self, values: Mapping[str, Any]) -> None:
        """Lay out what differs from step to step, by name.

        What is said by a name that this era does not have is left out.
        """

    @abstractmethod
    def attend(self, layer: int, q: torch.Tensor, output: torch.Tensor) -> None:
        """Call for one layer.

        Args:
            layer: its row in the pool mapping.
            q: the fused queries, keys and values.
            output: written.

        Raises:
            RuntimeError: the operator's own.
        """


def make_thop_call(thop: InstalledThop, constants: Mapping[str, Any]) -> ThopCall:
    """Make what suits the installed operator.

    Args:
        thop: the operator and its era.
        constants: values that stay, by name.
    """
    kind = KeywordCall if thop.era.positions is None else PositionalCall
    return kind(thop, constants)


class PositionalCall(ThopCall):
    """Every argument in its place: the way of 1.1 and 1.2."""

    def __init__(self, thop: InstalledThop, constants: Mapping[str, Any]) -> None:
        names = thop.signature.names
        self._operator: Final = thop.operator
        self._names: Final = names
        per_layer = (thop.era.layer_argument, "q", "output")
        self._places: Final = tuple(map(names.index, per_layer))
        self._constants: Final = {
            **thop.era.constants,
            **constants,
            **dict.fromkeys(per_layer),
        }
        self._arguments: list[Any] = []

    def begin_step(self, values: Mapping[str, Any]) -> None:
        """Put all values in a row, with three places left for the layer's."""
        given = {**self._constants, **values}
        self._arguments = [given[name] for name in self._names]

    def attend(self, layer: int, q: torch.Tensor, output: torch.Tensor) -> None:
        """Fill the places that were left."""
        for place, value in zip(self._places, (layer, q, output), strict=True):
            self._arguments[place] = value
        self._operator(*self._arguments)


class KeywordCall(ThopCall):
    """By name, without what has a default: the way since 2026.

    A release that adds an argument with a default is served without knowing it.
    """

    def __init__(self, thop: InstalledThop, constants: Mapping[str, Any]) -> None:
        self._operator: Final = thop.operator
        self._names: Final = frozenset(thop.signature.names)
        self._layer_argument: Final = thop.era.layer_argument
        unused = thop.era.constants
        required = {k: v for k, v in unused.items() if k in thop.signature.required}
        self._constants: Final = {**required, **self._had(constants)}
        self._arguments: dict[str, Any] = {}

    def begin_step(self, values: Mapping[str, Any]) -> None:
        """Add them to what stays."""
        self._arguments = {**self._constants, **self._had(values)}

    def attend(self, layer: int, q: torch.Tensor, output: torch.Tensor) -> None:
        """Add what is the layer's."""
        own = {self._layer_argument: layer, "q": q, "output": output}
        self._operator(**self._arguments, **own)

    def _had(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name in self._names}
