"""A run's pools on several nodes: see three_nodes.py, which has the story."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def test_pools_over_three_nodes_outlive_one_and_grow_into_another() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(Path(__file__).parents[2])}
    script = Path(__file__).with_name("three_nodes.py")
    ran = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=230)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.endswith("done\n")
