"""Packed bfloat16 layers multiply as plain ones do, alone and in groups."""

import pytest
import torch

from hybrid.backends.pytorch.packed_linear import PackedLinear, can_pack, pack_linears

needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this CPU has no bfloat16 instructions that oneDNN uses",
)
RELATIVE_ERROR = 0.01


class Block(torch.nn.Module):
    """Siblings as in transformers' attention and MLP, a lone layer, and a subclass."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(48, 64, bias=bias)
        self.k_proj = torch.nn.Linear(48, 16, bias=bias)
        self.v_proj = torch.nn.Linear(48, 16, bias=bias)
        self.out_proj = torch.nn.Linear(48, 8, bias=bias)
        self.gate_proj = torch.nn.Linear(48, 32, bias=bias)
        self.up_proj = torch.nn.Linear(40, 32, bias=bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """All products of one input, in the order that models call them."""
        names = ("q_proj", "k_proj", "v_proj", "out_proj", "gate_proj")
        products = [getattr(self, name)(rows) for name in names]
        return torch.cat([*products, self.up_proj(rows[..., :40])], dim=-1)


def error(packed: torch.Tensor, plain: torch.Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((packed.float() - plain.float()).norm() / plain.float().norm())


@needs_bfloat16
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 3, 33])
def test_packed_layers_give_the_plain_products(num_rows: int, *, bias: bool) -> None:
    """Groups and lone layers, with and without bias, for few and many rows."""
    torch.manual_seed(0)
    block = Block(bias=bias).bfloat16().requires_grad_(requires_grad=False)
    rows = torch.randn(1, num_rows, 48).bfloat16()
    plain = block(rows)
    assert can_pack(block)
    with torch.inference_mode():
        pack_linears(block)
        assert isinstance(block.q_proj, PackedLinear)
        assert isinstance(block.up_proj, PackedLinear)
        assert error(block(rows), plain) < RELATIVE_ERROR
        assert error(block(rows * 2 + 1), Block.forward(block, rows)) > RELATIVE_ERROR


@needs_bfloat16
def test_a_group_called_out_of_turn_still_multiplies_what_it_is_given() -> None:
    """No reader ever gets the product of another reader's input."""
    torch.manual_seed(0)
    block = Block(bias=True).bfloat16().requires_grad_(requires_grad=False)
    inputs = [torch.randn(2, 48).bfloat16() for _ in range(6)]
    names = ["q_proj", "k_proj", "k_proj", "v_proj", "q_proj", "q_proj"]
    calls = list(zip(names, inputs, strict=True))
    calls += [("q_proj", inputs[0]), ("q_proj", inputs[0]), ("k_proj", inputs[0])]
    plain = [getattr(block, name)(rows) for name, rows in calls]
    with torch.inference_mode():
        pack_linears(block)
        for (name, rows), expected in zip(calls, plain, strict=True):
            assert error(getattr(block, name)(rows), expected) < RELATIVE_ERROR


@needs_bfloat16
def test_the_plain_weight_can_still_be_looked_at() -> None:
    """Modelling code that reads ``weight`` gets what was packed."""
    block = Block(bias=False).bfloat16().requires_grad_(requires_grad=False)
    weight = block.k_proj.weight.clone()
    with torch.inference_mode():
        pack_linears(block)
        assert torch.equal(block.k_proj.weight, weight)


def test_float32_is_left_alone() -> None:
    """The reference dtype keeps torch's own product, bit by bit."""
    assert not can_pack(Block(bias=True))


def test_a_subclass_keeps_its_own_forward() -> None:
    """Only plain linear layers are replaced."""

    class Doubled(torch.nn.Linear):
        """Not what its weight says."""

    holder = torch.nn.Module()
    holder.layer = Doubled(4, 4)
    pack_linears(holder)
    assert type(holder.layer) is Doubled
