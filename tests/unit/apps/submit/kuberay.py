"""Schemas of KubeRay's RayJob and RayCluster, version v1, without their descriptions.

`kuberay_crds.json.gz` holds `openAPIV3Schema` of the definitions in `ray-operator/config/crd/bases` of
https://github.com/ray-project/kuberay (Apache License 2.0), commit feeaf72facab4881ba2b179248bb67315634e229 of
19 August 2026, after v1.7.0-rc.0. To renew it, write the two schemas by kind as JSON and compress the file with gzip.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("kuberay_crds.json.gz")
OPEN = ("additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource")
NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}
"""The operator refuses longer names of its resources, which the definitions do not say."""


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a kind with closed fields, because a cluster drops those that it does not know."""
    made = _close(json.loads(gzip.decompress(FILE.read_bytes()))[kind])
    metadata = {"type": "object", "properties": {"name": NAME}, "required": ["name"]}
    return made | {"properties": made["properties"] | {"metadata": metadata}, "required": ["metadata", "spec"]}


def _close(node: Any) -> Any:
    if isinstance(node, list):
        return [_close(part) for part in node]
    if not isinstance(node, dict):
        return node
    made = {key: _close(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not any(node.get(key) for key in OPEN):
        made["additionalProperties"] = False
    return made
