"""Pools of a run on several nodes; the scenarios are in three_nodes.py and elastic_nodes.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.heads import ROOT, environment, head

pytestmark = [pytest.mark.integration, pytest.mark.deep, pytest.mark.timeout(240)]


def test_pools_on_three_nodes_survive_a_loss_and_use_new_nodes() -> None:
    open_to_all = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    open_to_all |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    _runs_to_its_end("three_nodes.py", env=open_to_all)


def test_elastic_cluster_adds_the_nodes_for_a_pool() -> None:
    """Pending replicas alone make Ray's autoscaler start the nodes."""
    env = environment("a-token-for-this-test-alone-0123456789")
    with head(env, cpus=2, more_nodes={"CPU": 2}) as cluster:
        _runs_to_its_end("elastic_nodes.py", cluster.address, env=env)


def _runs_to_its_end(story: str, *args: str, env: dict[str, str]) -> None:
    command = [sys.executable, str(Path(__file__).with_name(story)), *args]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=230)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout.endswith("done\n")
