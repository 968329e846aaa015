"""Once a model is in the cache, starting from it imports nothing that takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.tiny_checkpoints import make_model, write_gguf

HEAVY = ("torch", "transformers", "gguf", "huggingface_hub", "sympy")
WARM_START = f"""
import json, sys
from hybrid import LLM, SamplingParams
params = SamplingParams(max_tokens=2, temperature=0.0)
with LLM(sys.argv[1], executor="null", num_kv_blocks=64) as llm:
    started = [name for name in {HEAVY} if name in sys.modules]
    llm.generate("Hello", params, use_tqdm=False)
    llm.chat([{{"role": "user", "content": "Hello"}}], params, use_tqdm=False)
    answered = [name for name in {HEAVY} if name in sys.modules]
print(json.dumps([started, answered]))
"""


def test_a_warm_start_imports_nothing_heavy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what trains models, nor what converts them, nor for a chat."""
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", make_model("llama"))
    # The first start converts, which may import anything.
    runs = [
        subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", WARM_START, str(tmp_path / "tiny.gguf")],
            capture_output=True,
            check=True,
            timeout=120,
            text=True,
        )
        for _ in range(2)
    ]
    assert json.loads(runs[1].stdout) == [[], []]
