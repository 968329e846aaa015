"""A Llama-shaped decoder over packed tokens, whose attention is somebody else's.

Weights and rotary frequencies come out of transformers' loaded model, which is dropped
layer by layer, so that both never lie in memory together. Q, K and V are one product,
as are gate and up: the form in which TensorRT-LLM's operator takes them. Products may
be replaced, say by quantised ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Attends(Protocol):
    """Whoever writes K and V and attends; what a step needs was given to it before."""

    def attend(self, layer: int, qkv: torch.Tensor, output: torch.Tensor) -> None:
        """Write the step's K and V of one layer, then attend.

        Args:
            layer: index of the layer.
            qkv: ``[N, (num_heads + 2 * num_kv_heads) * head_dim]``, contiguous: each
                token's rotated queries, rotated keys, values, head by head.
            output: ``[N, num_heads * head_dim]``, contiguous; written.
        """
        ...


Product = Callable[[torch.Tensor], torch.Tensor]
"""Multiplies rows ``[N, in]`` by weights: ``[N, out]`` in the rows' dtype."""


@dataclass(frozen=True, slots=True)
class Linear:
    """``[out, in]`` weights and, where the model has them, biases ``[out]``."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply ``[N, in]`` to ``[N, out]``."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square normalisation over the last axis."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise ``[..., size]``."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def to(self, dtype: torch.dtype) -> "Norm":
        """Normalise rows of another dtype."""
        return Norm(self.weight.to(dtype), self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    input_norm: Norm
    qkv: Product
    query_norm: Norm | None
    key_norm: Norm | None
    output: Product
    mlp_norm: Norm
    gate_up: Product
    down: Product


class Llama:
    """The model; one forward pass runs all tokens of a step."""

    def __init__(self, loaded: "PreTrainedModel", *, num_heads: int) -> None:
        """Take the weights out of ``loaded``, which is useless afterwards."""
        body: Any = loaded.model
        head: Any = loaded.lm_head
        self._num_heads: Final = num_heads
        rotary = body.rotary_emb
        self._inv_freq: Final[torch.Tensor] = rotary.inv_freq.float()
        self._rope_scaling: Final = float(rotary.attention_scaling)
        self._embeddings: Final[torch.Tensor] = body.embed_tokens.weight
        self._dtype: torch.dtype = self._embeddings.dtype
        self._norm = _norm(body.norm)
        self._head: Product = _joined([head])
        layers = []
        for index in range(len(body.layers)):
            layers.append(_layer(body.layers[index]))
            body.layers[index] = torch.nn.Identity()
        self._layers: Final = layers
        self._head_dim: Final = int(self._inv_freq.shape[0]) * 2

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and logits."""
        return self._dtype

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor | None,
        attention: Attends,
    ) -> torch.Tensor:
        """Run a step's tokens; ``attention`` knows the step.

        Args:
            input_ids: int64 ``[N]``.
            positions: int64 ``[N]``, of each token in its own sequence.
            rows: int64 ``[R]``, tokens whose logits are wanted; ``None``: all.
            attention: writes K and V, attends.

        Returns:
            ``[R, vocab_size]`` logits in the model's dtype.
        """
        hidden = functional.embedding(input_ids, self._embeddings).to(self._dtype)
        cos, sin = self._rotation(positions, hidden.dtype)
        attended = hidden.new_empty(len(hidden), self._num_heads * self._head_dim)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(layer.input_norm(hidden))
            self._rotate(layer, qkv, cos, sin)
            attention.attend(index, qkv, attended)
            hidden = hidden + layer.output(attended)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        if rows is not None:
            hidden = hidden.index_select(0, rows)
        return self._head(self._norm(hidden))

    def replace_products(
        self, replacement: Callable[[Linear], Product], dtype: torch.dtype
    ) -> None:
        """Let others multiply, layer by layer: each weight goes as its heir comes.

        Args:
            replacement: called once with each of the model's products.
            dtype: of all activations from here on.
        """

        def replaced(product: Product) -> Product:
            assert isinstance(product, Linear), "products are replaced once"
            return replacement(product)

        for index, layer in enumerate(self._layers):
            self._layers[index] = Layer(
                input_norm=layer.input_norm.to(dtype),
                qkv=replaced(layer.qkv),
                query_norm=layer.query_norm and layer.query_norm.to(dtype),
                key_norm=layer.key_norm and layer.key_norm.to(dtype),
                output=replaced(layer.output),
                mlp_norm=layer.mlp_norm.to(dtype),
                gate_up=replaced(layer.gate_up),
                down=replaced(layer.down),
            )
        self._norm = self._norm.to(dtype)
        self._head = replaced(self._head)
        self._dtype = dtype

    def _rotation(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of each token: ``[N, 1, head_dim / 2]``."""
        # In float32 whatever the model computes in: positions go into the thousands.
        angles = (positions[:, None].float() * self._inv_freq)[:, None]
        cos, sin = angles.cos(), angles.sin()
        return (cos * self._rope_scaling).to(dtype), (sin * self._rope_scaling).to(
            dtype
        )

    def _rotate(
        self, layer: Layer, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """Normalise (where the model does) and rotate queries and keys in place."""
        heads = qkv.view(len(qkv), -1, self._head_dim)
        num_kv_heads = (heads.shape[1] - self._num_heads) // 2
        queries = heads[:, : self._num_heads]
        keys = heads[:, self._num_heads : self._num_heads + num_kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries.copy_(layer.query_norm(queries))
            keys.copy_(layer.key_norm(keys))
        both = heads[:, : self._num_heads + num_kv_heads]
        first, second = both.chunk(2, dim=-1)
        rotated = first * cos - second * sin
        second.copy_(second * cos + first * sin)
        first.copy_(rotated)


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm = getattr(attention, "q_norm", None)
    key_norm = getattr(attention, "k_norm", None)
    return Layer(
        input_norm=_norm(layer.input_layernorm),
        qkv=_joined([attention.q_proj, attention.k_proj, attention.v_proj]),
        query_norm=None if query_norm is None else _norm(query_norm),
        key_norm=None if key_norm is None else _norm(key_norm),
        output=_joined([attention.o_proj]),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=_joined([mlp.gate_proj, mlp.up_proj]),
        down=_joined([mlp.down_proj]),
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight, float(module.variance_epsilon))


def _joined(modules: Sequence[Any]) -> Linear:
    """Lay products of one input side by side."""
    weights = [module.weight for module in modules]
    biases = [module.bias for module in modules]
    if len(modules) == 1:
        return Linear(weights[0], biases[0])
    has_bias = biases[0] is not None
    return Linear(torch.cat(weights), torch.cat(biases) if has_bias else None)
