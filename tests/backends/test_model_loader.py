"""Hugging Face directories become models whose every parameter is the file's."""

import gc
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

from hybrid.backends.checkpoint.garbage_collection import paused_garbage_collection
from hybrid.backends.pytorch.model_loader import load_model
from hybrid.scheduler.errors import CheckpointError, ConfigError
from tests.backends.model_directory import change_config, change_weights, load, save
from tests.backends.tiny_checkpoints import logits_of, make_model

LM_HEAD = "lm_head.weight"


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen3", {"head_dim": 8}),
        ("llama", {"head_dim": None}),
        # Heads that are wider together than the hidden state, and do not divide it.
        (
            "qwen3",
            {
                "hidden_size": 1792,
                "num_attention_heads": 24,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "num_hidden_layers": 1,
            },
        ),
        (
            "llama",
            {
                "hidden_size": 96,
                "num_attention_heads": 12,
                "num_key_value_heads": 4,
                "head_dim": 16,
            },
        ),
    ],
)
def test_loaded_model_gives_the_same_logits(
    tmp_path: Path, kind: str, overrides: dict[str, object]
) -> None:
    """Explicit, null and unusual head sizes, tied and untied."""
    model = make_model(kind, **overrides)
    loaded = load(save(tmp_path, model))
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=1e-5)


def test_null_head_dim_in_the_file_is_derived(tmp_path: Path) -> None:
    """``head_dim: null`` means hidden size over heads."""
    model = make_model("llama")
    save(tmp_path, model)
    change_config(tmp_path, head_dim=None)
    torch.testing.assert_close(
        logits_of(load(tmp_path)), logits_of(model), rtol=0, atol=1e-5
    )


def test_shards_are_put_together(tmp_path: Path) -> None:
    """A model in many files is the model."""
    model = make_model("llama")
    save(tmp_path, model, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    torch.testing.assert_close(
        logits_of(load(tmp_path)), logits_of(model), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_parameters_have_the_dtype_asked_for(tmp_path: Path, dtype: str) -> None:
    """Whatever the files hold."""
    loaded = load(save(tmp_path, make_model("llama")), dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {
        getattr(torch, dtype)
    }


def test_tied_model_needs_no_lm_head(tmp_path: Path) -> None:
    """The head is the embedding, one tensor."""
    loaded = load(save(tmp_path, make_model("llama", tie_word_embeddings=True)))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_tied_model_with_an_equal_lm_head_loads(tmp_path: Path) -> None:
    """Files that carry the tied tensor twice are common."""
    model = make_model("llama", tie_word_embeddings=True)
    save(tmp_path, model)
    embedding = load_file(tmp_path / "model.safetensors")[EMBEDDING]
    change_weights(tmp_path, lm_head__weight=embedding.clone())
    torch.testing.assert_close(
        logits_of(load(tmp_path)), logits_of(model), rtol=0, atol=1e-5
    )


def test_tied_model_with_another_lm_head_keeps_the_files(tmp_path: Path) -> None:
    """Where config and files contradict, the weights that were trained win."""
    save(tmp_path, make_model("llama", tie_word_embeddings=True))
    torch.manual_seed(1)
    head = torch.randn_like(load_file(tmp_path / "model.safetensors")[EMBEDDING])
    change_weights(tmp_path, lm_head__weight=head)
    loaded = load(tmp_path)
    assert torch.equal(loaded.lm_head.weight, head)
    assert not torch.equal(loaded.model.embed_tokens.weight, head)
    hidden = torch.randn(1, head.shape[1])
    torch.testing.assert_close(loaded.lm_head(hidden), hidden @ head.T)


def test_untied_model_without_lm_head_is_an_error(tmp_path: Path) -> None:
    """Never a random head."""
    save(tmp_path, make_model("llama"))
    change_weights(tmp_path, lm_head__weight=None)
    with pytest.raises(CheckpointError, match=r"no file holds: lm_head\.weight"):
        load(tmp_path)


def test_missing_parameter_is_named(tmp_path: Path) -> None:
    """Never a random layer."""
    save(tmp_path, make_model("llama"))
    change_weights(tmp_path, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(
        CheckpointError, match=r"no file holds: model\.layers\.1\.mlp\.up_proj\.weight"
    ):
        load(tmp_path)


def test_unexpected_tensor_is_named(tmp_path: Path) -> None:
    """Weights that the model does not use mean that it is another model."""
    save(tmp_path, make_model("llama"))
    change_weights(tmp_path, model__layers__0__self_attn__q_proj__bias=torch.ones(64))
    with pytest.raises(
        CheckpointError, match=r"no parameter of this model: .*q_proj\.bias"
    ):
        load(tmp_path)


def test_mismatched_shape_is_named(tmp_path: Path) -> None:
    """A wrong key size in the config is found, not papered over."""
    save(tmp_path, make_model("llama"))
    change_config(tmp_path, head_dim=32)
    with pytest.raises(CheckpointError, match=r"shape is not .*k_proj.*and 3 more"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        (None, "has no config.json"),
        ("{", r"config\.json is no JSON"),
        ('{"model_type": "martian"}', "cannot be loaded"),
        ("{}", "cannot be loaded"),
        (
            '{"model_type": "martian", "auto_map": {"AutoConfig": "code.Config"}}',
            "cannot be loaded",
        ),
    ],
)
def test_broken_config_is_an_error(
    tmp_path: Path, config: str | None, fault: str
) -> None:
    """No config, no JSON, no known model, or one that brings its own code."""
    save(tmp_path, make_model("llama"))
    (tmp_path / "code.py").write_text("raise SystemExit('code ran')")
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=fault):
        load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("num_hidden_layers", 10**6, "files hold 21 tensors in all"),
        ("vocab_size", 10**10, "largest dimension of any tensor in the files is 320"),
        ("hidden_size", 10**6, "largest dimension"),
        ("intermediate_size", 10**30, "largest dimension"),
        ("num_attention_heads", 10**6, "largest dimension"),
        ("head_dim", 10**9, "largest dimension"),
    ],
)
def test_sizes_beyond_the_files_are_refused_before_building(
    tmp_path: Path, key: str, value: int, fault: str
) -> None:
    """The error names the key, its value and what the files hold."""
    save(tmp_path, make_model("llama"))
    change_config(tmp_path, **{key: value})
    with pytest.raises(
        CheckpointError, match=rf"config\.json: {key} is {value}.*{fault}"
    ):
        load(tmp_path)


def test_sizes_of_a_text_config_are_checked_too(tmp_path: Path) -> None:
    """Where a model of text and images keeps them."""
    save(tmp_path, make_model("llama"))
    change_config(tmp_path, text_config={"vocab_size": 10**10})
    with pytest.raises(CheckpointError, match="vocab_size is 10000000000"):
        load(tmp_path)


def test_a_config_of_a_much_larger_model_is_refused_before_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that config.json lacks are the architecture's, often of billions."""
    save(tmp_path, make_model("llama"))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["hidden_size"], config["intermediate_size"]
    path.write_text(json.dumps(config))
    monkeypatch.setattr("hybrid.backends.pytorch.model_loader._from_pretrained", None)
    with pytest.raises(
        CheckpointError,
        match=r"model of \d{9} numbers .*hidden_size 4096.*, the files hold 102720",
    ):
        load(tmp_path)


@pytest.mark.parametrize("metadata", [None, 5])
def test_an_index_without_metadata_says_what_to_add(
    tmp_path: Path, metadata: object
) -> None:
    """Not the bare KeyError that transformers raises."""
    save(tmp_path, make_model("llama"), max_shard_size="40KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text()) | {"metadata": metadata}
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json has no object 'metadata'"):
        load(tmp_path)


def test_unknown_dtype_is_a_config_error(tmp_path: Path) -> None:
    """The error names the known ones."""
    with pytest.raises(ConfigError, match=r"'int4'.*float32, float16"):
        load(tmp_path, "int4")


def test_progress_ends_with_all_bytes(tmp_path: Path) -> None:
    """The callback hears of the start and of the end."""
    save(tmp_path, make_model("llama"))
    calls: list[tuple[str, int, int]] = []
    load_model(
        tmp_path,
        dtype="float32",
        device="cpu",
        attn_implementation="eager",
        progress=lambda *call: calls.append(call),
    )
    assert calls[0][:2] == ("load", 0)
    assert calls[-1][1] == calls[-1][2] > 0


def test_transformers_stays_quiet_and_keeps_its_settings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No bar and no report on the terminal; the user's verbosity is restored."""
    save(tmp_path, make_model("llama"))
    before = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    capfd.readouterr()
    load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == before
    assert transformers_logging.is_progress_bar_enabled() == bars


def test_garbage_collection_is_paused_and_restored() -> None:
    """On or off before, it is the same after; an error changes nothing."""
    assert gc.isenabled()
    with paused_garbage_collection(), paused_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), paused_garbage_collection():
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
