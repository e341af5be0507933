"""Memory over all processes, including children."""

from __future__ import annotations

import subprocess
import sys

from hamr.telemetry.memory import MemoryWatch

# In a process of its own, since the one that runs the tests may have other children that come and go.
PARENT = """
import subprocess, sys
from hamr.telemetry.memory import tree_memory_gib
before = tree_memory_gib()
takes = "import sys; block = b'x' * (200 << 20); print('ready', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", takes], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(tree_memory_gib() - before)
child.communicate()
"""


def test_memory_of_child_processes_counts() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True, timeout=60)
    assert 0.15 < float(done.stdout) < 0.5


def test_watch_keeps_the_peak() -> None:
    with MemoryWatch(interval_s=0.01) as watch:
        while watch.peak == 0.0:
            pass
    assert 0.0 < watch.peak < 100.0
