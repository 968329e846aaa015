"""The form of TensorRT-LLM's operator is read from itself, an unknown one refused."""

import sys
from typing import Any

import pytest
import torch

from hybrid.backends.trtllm.thop_attention import ThopAttention
from hybrid.backends.trtllm.thop_call import make_thop_call
from hybrid.backends.trtllm.thop_eras import ERA_1_2
from hybrid.backends.trtllm.thop_signature import find_installed_thop, read_signature
from hybrid.scheduler import UnsupportedFeature
from tests.backends.thop_stand import MACHINE
from tests.backends.trtllm_standin import installed


@pytest.mark.parametrize(
    ("version", "label"),
    [
        ("1.2.1", "1.1 and 1.2"),
        ("1.3.0rc10", "early 2026"),
        ("1.4.0rc1", "mid-2026"),
    ],
)
def test_the_form_is_told_by_its_arguments(version: str, label: str) -> None:
    """Also the order of those that are given by place, against upstream's own."""
    with installed(version) as package:
        arguments = package.bindings.internal.thop.attention.arguments
        thop = find_installed_thop()
    assert (thop.version, thop.era.label) == (version, label)
    assert thop.signature.names == tuple(one.name for one in arguments)
    required = {one.name for one in arguments if one.default is None}
    assert thop.signature.required == required


def test_a_signature_is_read_as_either_binding_library_prints_it() -> None:
    """Types with commas in them, defaults, and the text after the first line."""
    doc = (
        "attention(q: torch.Tensor, k: Optional[torch.Tensor] = None, "
        "pairs: Dict[str, Tuple[int, Optional[int]]], flag: bool = False) -> None\n\n"
        "Multi-head attention operation (fused)"
    )
    signature = read_signature(doc)
    assert signature is not None
    assert signature.names == ("q", "k", "pairs", "flag")
    assert signature.required == {"q", "pairs"}
    assert read_signature("Multi-head attention operation") is None


def refused(version: str, change: Any) -> str:
    """What is said of an operator whose printed arguments are changed."""
    with installed(version) as package:
        operator = package.bindings.internal.thop.attention
        operator.__doc__ = change(operator.__doc__)
        reason = ThopAttention.refusal(MACHINE, None)
    assert reason is not None
    assert f"tensorrt_llm {version}" in reason
    return reason


WINDOW = "attention_window_size: int, "
HOST_OFFSETS = "host_kv_cache_block_offsets: torch.Tensor | None = None, "
TILES = "num_tiles: int, "
SWAPPED = "mask_type: int, beam_width: int, "


@pytest.mark.parametrize(
    ("version", "before", "after", "message"),
    [
        ("1.2.1", WINDOW, "", "lacks attention_window_size"),
        ("1.2.1", HOST_OFFSETS, "", "lacks host_kv_cache_block_offsets"),
        ("1.3.0rc10", WINDOW, "", "lacks attention_window_size"),
        ("1.4.0rc1", "num_ctx_tokens: int = 0, ", "", "lacks num_ctx_tokens"),
        ("1.3.0rc10", WINDOW, TILES + WINDOW, "wants num_tiles"),
        ("1.2.1", WINDOW, TILES, "lacks attention_window_size and wants num_tiles"),
        ("1.2.1", "beam_width: int, mask_type: int, ", SWAPPED, "in another order"),
        ("1.2.1", WINDOW, WINDOW + "new: int = 0, ", "in another order"),
        ("1.3.0rc10", "layer_idx", "layer", "a form that is not known here; it has q,"),
        ("1.4.0rc1", "attention(", "(", "does not say what its arguments are"),
    ],
)
def test_an_unknown_form_is_refused_by_what_differs(
    version: str, before: str, after: str, message: str
) -> None:
    """A value in a wrong place would not fail but attend wrongly."""
    assert message in refused(version, lambda doc: doc.replace(before, after, 1))


def test_a_form_without_a_word_is_refused() -> None:
    """A build whose bindings print nothing."""
    assert "does not say" in refused("1.2.1", lambda _: None)


def test_arguments_that_mid_2026_still_brought_are_known() -> None:
    """Those that upstream's caller passes and the stand-in's earlier state lacks.

    Source: ``attention_backend/fmha/fallback.py`` at 06e777cb.
    """
    with installed("1.4.0rc1") as package:
        operator = package.bindings.internal.thop.attention
        later = (
            "max_num_sequences: int, force_prepare_spec_dec_tree_mask: bool, "
            "kv_norm_weight: torch.Tensor | None, kv_norm_eps: float, "
            "skip_correction_threshold: float, "
        )
        operator.__doc__ = operator.__doc__.replace(WINDOW, later + WINDOW)
        assert ThopAttention.refusal(MACHINE, None) is None


def test_what_has_a_default_is_left_alone_by_name() -> None:
    """A release that adds such an argument is served; one that must be given is."""
    with installed("1.3.0rc10") as package:
        operator = package.bindings.internal.thop.attention
        operator.__doc__ = operator.__doc__.replace(WINDOW, WINDOW + "new: int = 7, ")
        thop = find_installed_thop()
        given: dict[str, Any] = {}
        spy = type(thop)(
            lambda **words: given.update(words), "", thop.signature, thop.era
        )
        call = make_thop_call(spy, {"workspace_": "w", "max_seq_len": 9})
        call.begin_step({"sequence_length": "s", "num_contexts": 3})
        one = torch.zeros(1)
        call.attend(4, one, one)
    assert {"new", "skip_softmax_stat", "max_seq_len", "num_contexts"}.isdisjoint(given)
    assert (given["workspace_"], given["sequence_length"]) == ("w", "s")
    assert (given["layer_idx"], given["k"], given["beam_width"]) == (4, None, 1)


def test_the_first_form_is_given_all_arguments_by_place() -> None:
    """So many as it has, those of the layer in their places, none by name."""
    with installed("1.2.1"):
        thop = find_installed_thop()
    rows: list[tuple[Any, ...]] = []
    spy = type(thop)(lambda *row: rows.append(row), "", thop.signature, thop.era)
    constants = dict.fromkeys(thop.signature.names, "constant")
    call = make_thop_call(spy, constants)
    call.begin_step({"sequence_length": "step"})
    call.attend(4, torch.zeros(1), torch.ones(1))
    call.attend(5, torch.zeros(2), torch.ones(2))
    assert ERA_1_2.positions == thop.signature.names
    for layer, row in zip((4, 5), rows, strict=True):
        assert len(row) == 66
        assert len(row[0]) == len(row[3]) == layer - 3
        assert (row[7], row[30], row[65]) == ("step", layer, "constant")


def test_a_package_that_cannot_be_imported_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing library of the system, for one; the error is told."""
    with installed("1.2.1"):
        # What import finds there makes it raise.
        monkeypatch.setitem(sys.modules, "tensorrt_llm.bindings.internal", None)
        with pytest.raises(UnsupportedFeature, match=r"bindings\.internal cannot be"):
            find_installed_thop()
        monkeypatch.undo()
