"""bfloat16 linear layers in oneDNN's own weight order, for CPUs.

torch hands oneDNN a plain weight and oneDNN reorders it in every call; at the few rows
of a decode step that is half the time. The operators are those that torch's compiler
emits for frozen models. Layers that read the same input are multiplied as one.
Source: torch 2.13, ``torch/_inductor/fx_passes/mkldnn_fusion.py``.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

MAX_TIED_BYTES: Final = 256 << 20
"""A head that shares its weight with the embedding is packed as a copy up to this."""
SIBLINGS: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Children of one module that transformers' models call one after the other on the same
tensor. Should a model not do so, it still gets the right products."""


class PackedWeight:
    """One weight, or several with the same input one under the other."""

    def __init__(self, linears: Sequence[torch.nn.Linear]) -> None:
        weights = [linear.weight.detach() for linear in linears]
        biases: list[torch.Tensor | None] = [linear.bias for linear in linears]
        present = [bias.detach() for bias in biases if bias is not None]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self._packed: Any = torch.ops.mkldnn._reorder_linear_weight(  # noqa: SLF001 - its only name
            weight, None
        )
        self._bias = torch.cat(present) if present else None
        self._num_readers = len(linears)
        self._num_read = 0
        self._rows: torch.Tensor | None = None
        self._product: torch.Tensor | None = None

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply ``[..., in_features]`` by everything.

        A product is kept until each of the readers had it, or another input comes.
        """
        if self._product is None or self._rows is not rows:
            self._rows, self._num_read = rows, 0
            self._product = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - its only name
                rows, self._packed, self._bias, "none", [], ""
            )
        product: torch.Tensor = self._product
        self._num_read += 1
        if self._num_read == self._num_readers:
            self._rows = self._product = None
        return product

    def plain(self) -> torch.Tensor:
        """The weight in rows again, ``[out_features, in_features]``."""
        weight: torch.Tensor = self._packed.to_dense()
        return weight


class PackedLinear(torch.nn.Module):
    """A linear layer whose weight only oneDNN can read; inference only."""

    def __init__(
        self, linear: torch.nn.Linear, packed: PackedWeight, first: int
    ) -> None:
        """Read columns ``[first, first + out_features]`` of the packed product."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = packed
        self._first = first

    @property
    def weight(self) -> torch.Tensor:
        """The plain weight ``[out_features, in_features]``, unpacked anew."""
        return self._packed.plain()[self._first : self._first + self.out_features]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Multiply ``[..., in_features]``; returns ``[..., out_features]``."""
        product = self._packed.multiply(rows)
        if product.shape[-1] == self.out_features:
            return product
        return product.narrow(-1, self._first, self.out_features)


def can_pack(model: torch.nn.Module) -> bool:
    """Whether this torch, this CPU and this model's dtype have the operators."""
    first = next(model.parameters(), None)
    if first is None or first.dtype != torch.bfloat16 or first.device.type != "cpu":
        return False
    has_operators = hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return has_operators and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - its only name


def pack_linears(model: torch.nn.Module) -> None:
    """Replace the plain ``nn.Linear`` layers of a model in place."""
    embeddings = {
        module.weight.data_ptr()
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding)
    }
    for parent in list(model.modules()):
        for names in _groups(parent):
            linears = [getattr(parent, name) for name in names]
            weight = linears[0].weight
            if weight.data_ptr() in embeddings and weight.nbytes > MAX_TIED_BYTES:
                continue
            packed, first = PackedWeight(linears), 0
            for name, linear in zip(names, linears, strict=True):
                setattr(parent, name, PackedLinear(linear, packed, first))
                first += linear.out_features
    _leave_file(model)


def _leave_file(model: torch.nn.Module) -> None:
    """Copy what is left out of the mapped file, which would stay in memory whole."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _groups(parent: torch.nn.Module) -> Iterator[tuple[str, ...]]:
    """Names of the linear children to pack, those that can share a product together."""
    # Subclasses of nn.Linear have a forward of their own.
    linears = {
        name: child
        for name, child in parent.named_children()
        if type(child) is torch.nn.Linear
    }
    for names in SIBLINGS:
        group = [linears[name] for name in names if name in linears]
        if len(group) == len(names) and _are_alike(group):
            for name in names:
                del linears[name]
            yield names
    for name in linears:
        yield (name,)


def _are_alike(linears: Sequence[torch.nn.Linear]) -> bool:
    kinds = {(linear.in_features, linear.bias is None) for linear in linears}
    return len(kinds) == 1
