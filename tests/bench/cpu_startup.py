"""How long executor ``cpu`` takes to its first token: built on the way, and afterwards.

Seconds from the start of the process, the import and the interpreter included; each run
is a process of its own. The first has an empty cache but for the model's own file, so
that it converts and builds; the others start from what it made.

python -m tests.bench.cpu_startup --runs 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hybrid.models.cache import cache_dir

CHILD = """
import json, sys, time
started_s, model, options = json.loads(sys.argv[1])
seen = {"interpreter": time.time() - started_s}
from hybrid import LLM, SamplingParams
from hybrid.events import configure_logging
configure_logging("warning")
seen["import"] = time.time() - started_s
llm = LLM(model, executor="cpu", executor_options=options)
seen["engine"] = time.time() - started_s
params = SamplingParams(temperature=0, max_tokens=1)
llm.generate("The capital of France is", params, use_tqdm=False)
seen["first token"] = time.time() - started_s
seen["torch"] = float("torch" in sys.modules)
print(json.dumps(seen))
"""


def start(model: str, options: dict[str, str], cache: Path) -> dict[str, float]:
    """Run one process; seconds from its start to each point."""
    arguments = json.dumps([time.time(), model, options])
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", CHILD, arguments],
        env={**os.environ, "HYBRID_CACHE": str(cache)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seen


def show(title: str, runs: list[dict[str, float]]) -> None:
    """Print one line: medians."""
    names = [name for name in runs[0] if name != "torch"]
    cells = [
        f"{name} {statistics.median(run[name] for run in runs):.3f} s" for name in names
    ]
    torch = "imports torch" if any(run["torch"] for run in runs) else "without torch"
    print(f"{title}: {', '.join(cells)}; {torch}", flush=True)


def main() -> None:
    """Print the cold start and the warm ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    wanted = {"quantization": options.quantization}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        (cache / "models").symlink_to((cache_dir() / "models").resolve())
        show("cold", [start(options.model, wanted, cache)])
        warm = [start(options.model, wanted, cache) for _ in range(options.runs)]
        show(f"warm, median of {options.runs}", warm)


if __name__ == "__main__":
    main()
