"""Every file that names an end id is heard."""

import json
from pathlib import Path

import pytest

from hybrid.scheduler.errors import CheckpointError
from hybrid.tokenizer.stop_tokens import find_eos_token_ids

GENERATION = "generation_config.json"
CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"


def find(tmp_path: Path, files: dict[str, object]) -> frozenset[int]:
    """Write the files and look for end ids; token ``</s>`` is id 7."""
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    return find_eos_token_ids(tmp_path, {"</s>": 7}.get)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, set()),
        ({GENERATION: {"eos_token_id": 3}}, {3}),
        ({GENERATION: {"eos_token_id": [3, 4]}}, {3, 4}),
        ({CONFIG: {"eos_token_id": 5}}, {5}),
        ({CONFIG: {"text_config": {"eos_token_id": [5, 6]}}}, {5, 6}),
        ({TOKENIZER: {"eos_token": "</s>"}}, {7}),
        ({TOKENIZER: {"eos_token": {"content": "</s>", "lstrip": False}}}, {7}),
        ({TOKENIZER: {"eos_token": "unknown"}}, set()),
        ({TOKENIZER: {"eos_token": None}}, set()),
        ({GENERATION: {"eos_token_id": None}, CONFIG: {"eos_token_id": -1}}, set()),
        (
            {
                GENERATION: {"eos_token_id": [3, 4]},
                CONFIG: {"eos_token_id": 5},
                TOKENIZER: {"eos_token": "</s>"},
            },
            {3, 4, 5, 7},
        ),
    ],
)
def test_the_union_is_honoured(
    tmp_path: Path, files: dict[str, object], expected: set[int]
) -> None:
    """One file, any file, or all of them in disagreement."""
    assert find(tmp_path, files) == expected


@pytest.mark.parametrize("value", ["2", -5, 1.5, True, [[2]], {"id": 2}])
def test_what_is_no_id_is_named(tmp_path: Path, value: object) -> None:
    """A broken file is an error, not a model that talks for ever."""
    with pytest.raises(CheckpointError, match=r"generation_config\.json.*no token id"):
        find(tmp_path, {GENERATION: {"eos_token_id": value}})
