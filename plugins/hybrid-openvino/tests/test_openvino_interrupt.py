"""Ctrl-C is an exception, not a crash, before, while and after a model is loaded."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import faulthandler, gc, signal, sys
from pathlib import Path

from openvino_stand import load, logits

faulthandler.enable()

def press_ctrl_c():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return
    sys.exit("nothing was raised")

first, second = (load(Path(sys.argv[1])) for _ in range(2))
logits(first)
press_ctrl_c()
for executor in (first, second):
    executor.close()
    gc.collect()
    press_ctrl_c()
print("alive")
"""


def test_closed_executors_leave_signals_as_they_were(llama_ir: Path) -> None:
    """OpenVINO's CPU plugin moves the stack for signals; it must not take it away."""
    command = [sys.executable, "-c", SCRIPT, str(llama_ir)]
    done = subprocess.run(  # noqa: S603 - this interpreter, a script of ours
        command,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]
