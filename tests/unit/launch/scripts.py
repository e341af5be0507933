"""The scripts of launch/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

LAUNCH = Path(__file__).parents[3] / "launch"


def load_script(name: str) -> ModuleType:
    """Return launch/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(name, LAUNCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
