"""The part of KubeRay's v1 resources that hamr writes, as JSON schemas, fields closed.

From its API reference (1.6), and what its operator asks beyond that: how long names may be, and Ray's version where
there is a token.
"""

from __future__ import annotations

from typing import Any

OPEN = ("additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource")


def from_crd(crd: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the JSON schema of a CustomResourceDefinition with closed fields.

    A cluster drops the fields that it does not know.
    """
    (own,) = (v for v in crd["spec"]["versions"] if v["name"] == version)
    made = _close(own["schema"]["openAPIV3Schema"])
    metadata = {"type": "object"}
    return made | {"properties": made["properties"] | {"metadata": metadata}}


def _close(node: Any) -> Any:
    if isinstance(node, list):
        return [_close(part) for part in node]
    if not isinstance(node, dict):
        return node
    made = {key: _close(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not any(node.get(key) for key in OPEN):
        made["additionalProperties"] = False
    return made


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti)?$"}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY, "required": ["cpu", "memory"]}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$"}

VOLUME = closed(
    ("name",),
    name=NAME,
    configMap=closed(
        ("name",), name=NAME, items={"type": "array", "items": closed(("key", "path"), key=TEXT, path=TEXT)}
    ),
    emptyDir=closed(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    persistentVolumeClaim=closed(("claimName",), claimName=NAME, readOnly={"type": "boolean"}),
)
CONTAINER = closed(
    ("name", "image", "resources"),
    name=NAME,
    image=TEXT,
    resources=closed(("requests", "limits"), requests=QUANTITIES, limits=QUANTITIES),
    securityContext=closed(
        allowPrivilegeEscalation={"type": "boolean"},
        capabilities=closed(drop={"type": "array", "items": TEXT}),
    ),
    env={
        "type": "array",
        "items": closed(("name",), name=TEXT, value={"type": "string"}, valueFrom={"type": "object"}),
    },
    envFrom={"type": "array", "items": closed(secretRef=closed(("name",), name=TEXT))},
    volumeMounts={
        "type": "array",
        "items": closed(("name", "mountPath"), name=NAME, mountPath=TEXT, readOnly={"type": "boolean"}),
    },
)
POD = closed(
    ("spec",),
    metadata={"type": "object"},
    spec=closed(
        ("containers",),
        securityContext=closed(runAsNonRoot={"type": "boolean"}, runAsUser=COUNT, fsGroup=COUNT),
        containers={"type": "array", "items": CONTAINER, "minItems": 1},
        volumes={"type": "array", "items": VOLUME},
    ),
)
CLUSTER_SPEC = closed(
    ("headGroupSpec", "rayVersion"),
    rayVersion={"type": "string", "pattern": r"^(2\.(5[2-9]|[6-9]\d|\d{3,})|[3-9])\.\d+"},
    authOptions=closed(mode={"enum": ["disabled", "token"]}, secretName=TEXT, enableK8sTokenAuth={"type": "boolean"}),
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions={"type": "object"},
    suspend={"type": "boolean"},
    headServiceAnnotations=TEXTS,
    gcsFaultToleranceOptions={"type": "object"},
    headGroupSpec=closed(
        ("rayStartParams", "template"),
        rayStartParams=TEXTS,
        template=POD,
        serviceType=TEXT,
        enableIngress={"type": "boolean"},
    ),
    workerGroupSpecs={
        "type": "array",
        "items": closed(
            ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
            groupName=NAME,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            numOfHosts=COUNT,
            idleTimeoutSeconds=COUNT,
            rayStartParams=TEXTS,
            template=POD,
        ),
    },
)
JOB_SPEC = closed(
    ("entrypoint", "rayClusterSpec"),
    entrypoint=TEXT,
    shutdownAfterJobFinishes={"type": "boolean"},
    ttlSecondsAfterFinished=COUNT,
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    backoffLimit=COUNT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    runtimeEnvYAML=TEXT,
    metadata=TEXTS,
    entrypointNumCpus={"type": "number"},
    rayClusterSpec=CLUSTER_SPEC,
)
OBJECT = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}
METADATA = closed(("name",), name=OBJECT, namespace=NAME, labels=TEXTS)


def schema(kind: str) -> dict[str, Any]:
    parts: dict[str, dict[str, Any]] = {
        "ConfigMap": {"apiVersion": {"const": "v1"}, "data": TEXTS},
        "RayCluster": {"apiVersion": {"const": "ray.io/v1"}, "spec": CLUSTER_SPEC},
        "RayJob": {"apiVersion": {"const": "ray.io/v1"}, "spec": JOB_SPEC},
    }
    mine = parts[kind]
    return closed(("metadata", *mine, "kind"), kind={"const": kind}, metadata=METADATA, **mine)
