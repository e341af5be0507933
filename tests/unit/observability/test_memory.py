"""Memory over all processes: a child that takes some is seen."""

from __future__ import annotations

import subprocess
import sys

from hamr.observability.memory import MemoryWatch, tree_memory_gib

TAKES = "import sys; block = b'x' * (200 << 20); print('ready', flush=True); sys.stdin.read()"


def test_a_childs_memory_counts() -> None:
    before = tree_memory_gib()
    child = subprocess.Popen([sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdout.readline()
        assert 0.15 < tree_memory_gib() - before < 0.5
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


def test_the_watch_keeps_the_peak() -> None:
    with MemoryWatch(interval_s=0.01) as watch:
        while watch.peak == 0.0:
            pass
    assert 0.0 < watch.peak < 100.0
