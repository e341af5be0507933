"""OpenAPI description of `hamr serve`, for clients in other languages."""

from __future__ import annotations

from typing import Any

from hamr import __version__

_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_NUMBERS = {"type": "array", "items": {"type": ["number", "null"]}}
_SCHEMAS: dict[str, Any] = {
    "Sample": {
        "type": "object",
        "description": "A decision point, as in a line of a data file.",
        "required": ["id", "ticket", "policy", "tools", "history", "references"],
    },
    "ScoreRequest": {
        "type": "object",
        "required": ["groups"],
        "properties": {
            "groups": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["sample", "responses"],
                    "properties": {"sample": {"$ref": "#/components/schemas/Sample"}, "responses": _TEXTS},
                },
            }
        },
    },
    "ScoreAnswer": {
        "type": "object",
        "required": ["groups"],
        "properties": {
            "groups": {
                "type": "array",
                "description": "In the order of the request.",
                "items": {
                    "type": "object",
                    "required": ["rewards", "records"],
                    "properties": {
                        "rewards": {**_NUMBERS, "description": "null: the response could not be scored."},
                        "records": {"type": "array", "items": {"type": "object", "required": ["key", "total"]}},
                    },
                },
            }
        },
    },
    "GetRewardRequest": {
        "type": "object",
        "description": "OpenRLHF's request to a remote reward model. Three lists of the same length.",
        "required": ["query", "prompts", "labels"],
        "properties": {
            "query": {**_TEXTS, "description": "The prompt followed by the response."},
            "prompts": _TEXTS,
            "labels": {"type": "array", "minItems": 1, "description": "The sample, as JSON or as text of JSON."},
        },
    },
    "GetRewardAnswer": {
        "type": "object",
        "required": ["rewards", "scores", "extra_logs"],
        "properties": {
            "rewards": _NUMBERS,
            "scores": _NUMBERS,
            "extra_logs": {"type": "object", "additionalProperties": _NUMBERS},
        },
    },
    "Health": {
        "type": "object",
        "required": ["status", "version", "pools", "requests", "responses", "failed"],
        "properties": {
            "status": {"const": "ok"},
            "version": {"type": "string"},
            "pools": {"type": "object", "additionalProperties": {"type": "object", "required": ["running"]}},
            "requests": {"type": "integer"},
            "responses": {"type": "integer"},
            "failed": {"type": "integer"},
        },
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"type": "string"},
            "field": {"type": "string", "description": "Field of the request, for status 400."},
            "failures": {"type": "array", "items": {"type": "object", "required": ["index", "kind", "detail"]}},
        },
    },
}
_ERRORS = {
    "400": "The request is not valid.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from a web page, or names another host.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The content type is not application/json.",
    "500": "A defect of the server.",
    "503": "A reward is missing, or a pool is down. Try again after Retry-After seconds.",
}


def describe() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "hamr serve", "version": __version__, "description": "The reward system over HTTP."},
        "security": [{"token": []}],
        "paths": {
            "/score": {"post": _operation("Rewards and records of groups of responses.", "Score")},
            "/get_reward": {"post": _operation("Rewards in OpenRLHF's protocol.", "GetReward")},
            "/health": {"get": _operation("State of the pools.", None, answer="Health")},
            "/metrics": {
                "get": {
                    "summary": "Counts and durations for Prometheus.",
                    "responses": {
                        "200": {"description": "Done.", "content": {"text/plain": {}}},
                        **_errors("401", "403"),
                    },
                }
            },
        },
        "components": {"schemas": _SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(summary: str, name: str | None, answer: str | None = None) -> dict[str, Any]:
    body = {} if name is None else {"requestBody": {"required": True, "content": _json(f"{name}Request")}}
    answers = {"200": {"description": "Done.", "content": _json(answer or f"{name}Answer")}}
    return {"summary": summary, **body, "responses": answers | _errors(*(_ERRORS if name else ("401", "403", "503")))}


def _errors(*statuses: str) -> dict[str, Any]:
    return {status: {"description": _ERRORS[status], "content": _json("Error")} for status in statuses}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
