"""What a step's logits need is found out when the model is loaded."""

from contextlib import closing
from pathlib import Path

import pytest

from hybrid.backends.cpu.executor import CpuExecutor
from hybrid.backends.interface import ExecutorConfig
from hybrid.scheduler import ConfigError
from hybrid.testing import write_tiny_model
from tests.backends.built_cpu_engine import hf_source


@pytest.mark.parametrize("max_num_seqs", [2**40, 2**64])
def test_more_sequences_than_memory_could_hold_are_named(
    tmp_path: Path, max_num_seqs: int
) -> None:
    """By the option, not by the array that would be for them."""
    source = hf_source(write_tiny_model(tmp_path, "llama"))
    config = ExecutorConfig(
        dtype="bfloat16",
        max_num_seqs=max_num_seqs,
        num_threads=1,
        options={"implementation": "native"},
    )
    with (
        closing(CpuExecutor()) as executor,
        pytest.raises(ConfigError, match=f"max_num_seqs is {max_num_seqs}: "),
    ):
        executor.load(source, config)
