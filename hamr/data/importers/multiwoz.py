"""MultiWOZ (MIT) and data in its form: dialogues of a customer with a town's information service.

2.2, and the schema-guided dialogues:  dialogues_*.json, each a list of {"dialogue_id", "services", "turns":
[{"speaker": "USER" | "SYSTEM", "utterance", "frames": [{"service", "state"?: {"slot_values"}, "service_call"?:
{"method", "parameters"}, "service_results"?}]}]}, in folders `train`, `dev` and `test`.
2.1:  data.json, {name: {"goal", "log": [{"text"}]}}, whose turns alternate, with valListFile and testListFile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.imported import Imported, from_trajectories
from hamr.data.importers.reading import json_file
from hamr.data.importers.widen import calls_in, tools_from_calls
from hamr.data.shapes import Shape, check_shape
from hamr.data.trajectories import Trajectory, trajectory_from_json
from hamr.errors import DataError


class _State(Shape):
    slot_values: dict[str, Any] | None = None


class _ServiceCall(Shape):
    method: str
    parameters: dict[str, Any] | None = None


class _Frame(Shape):
    state: _State | None = None
    service_call: _ServiceCall | None = None
    service_results: list[Any] | None = None


class _Turn(Shape):
    speaker: Literal["USER", "SYSTEM"]
    utterance: str
    frames: list[_Frame] | None = None


class _Dialogue(Shape):
    dialogue_id: str
    turns: list[_Turn]
    services: list[str] | None = None


class _Text(Shape):
    text: str


class _Log(Shape):
    log: list[_Text]
    goal: dict[str, Any] | None = None


_SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}
_LISTS = {"validation": ("valListFile.json", "valListFile.txt"), "test": ("testListFile.json", "testListFile.txt")}
_TAG = re.compile(r"<[^>]+>")


def import_multiwoz(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    """Return one trajectory per dialogue of a file or folder. Published splits are kept.

    The services are the ticket; the customer's goal and wishes are privileged. There is no policy, and tools only where
    the dialogues contain calls. DataError names the dialogue and its field.
    """
    input = files["input"]
    rows: list[tuple[str, Mapping[str, Any], dict[str, Any]]] = []
    for path in _files(input):
        content = json_file(path, "input")
        read = _schema_guided if isinstance(content, list) else _logs
        rows += read(content, path)
    if not rows:
        raise DataError("input", str(input), "contains no dialogue; give dialogues_*.json, data.json or their folder")
    check_column("group", group, (whole for _, whole, _ in rows), input.name)
    calls = calls_in(row["turns"] for _, _, row in rows)
    tools = tools_from_calls(calls, calls)
    found: dict[str, Trajectory] = {}
    for where, whole, row in rows:
        meta = {"dataset": "multiwoz", "dialogue": row["id"], **row["meta"], **group_meta(whole, group)}
        trajectory = trajectory_from_json({**row, "policy": "", "tools": tools, "meta": meta}, where=where)
        if trajectory.id in found:
            raise DataError(where, trajectory.id, "already used by an earlier dialogue; make it unique")
        found[trajectory.id] = trajectory
    return from_trajectories(list(found.values()))


def _files(input: Path) -> list[Path]:
    if not input.is_dir():
        return [input]
    files = [*sorted(input.rglob("dialogues*.json")), *sorted(input.rglob("data.json"))]
    if not files:
        raise DataError("input", str(input), "has no dialogues_*.json or data.json; give the folder of MultiWOZ")
    return sorted(files, key=lambda path: path.parent.name != "train")


# --- 2.2 and schema-guided dialogues -----------------------------------------------------------


def _schema_guided(content: list[Any], path: Path) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    split = _SPLITS.get(path.parent.name)
    for i, dialogue in enumerate(content):
        check_shape(_Dialogue, dialogue, f"{path}: [{i}]")
        where = f"{path}: {dialogue['dialogue_id']}"
        wishes: dict[str, Any] = {}
        turns: list[dict[str, Any]] = []
        for turn in dialogue["turns"]:
            frames = turn.get("frames") or ()
            if turn["speaker"] == "USER":
                for frame in frames:
                    wishes.update((frame.get("state") or {}).get("slot_values") or {})
                turns.append({"role": "customer", "content": turn["utterance"]})
            else:
                for frame in frames:
                    turns.extend(_service_call(frame))
                turns.append({"role": "agent", "content": turn["utterance"]})
        row = {
            "id": dialogue["dialogue_id"].removesuffix(".json"),
            "ticket": {"services": list(dialogue.get("services") or ())},
            "turns": turns,
            "privileged": {"wishes": wishes},
            "meta": {"split": split} if split else {},
        }
        yield where, dialogue, row


def _service_call(frame: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if call := frame.get("service_call"):
        parameters = call.get("parameters") or {}
        yield {"role": "agent", "action": "call_tool", "name": call["method"], "parameters": parameters}
        results = json.dumps(frame.get("service_results") or [], ensure_ascii=False)
        yield {"role": "tool", "name": call["method"], "content": results}


# --- 2.1 ---------------------------------------------------------------------------------------


def _logs(content: Any, path: Path) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    if not isinstance(content, dict):
        raise DataError("input", str(path), "must be a list of dialogues, or an object of dialogues with a log")
    split_of = {name: split for split, files in _LISTS.items() for name in _names(path, files)}
    for name, dialogue in content.items():
        where = f"{path}: {name}"
        check_shape(_Log, dialogue, where)
        turns = [
            {"role": ("customer", "agent")[j % 2], "content": turn["text"].strip()}
            for j, turn in enumerate(dialogue["log"])
        ]
        goal = dialogue.get("goal") or {}
        message = goal.get("message") or ()
        row = {
            "id": name.removesuffix(".json"),
            "ticket": {"services": [domain for domain, wish in goal.items() if wish and domain in _DOMAINS]},
            "turns": turns,
            "privileged": {
                "goal": _TAG.sub("", " ".join(map(str, message)) if isinstance(message, list) else str(message or ""))
            },
            "meta": {"split": split_of.get(name, "train")} if split_of else {},
        }
        yield where, dialogue, row


_DOMAINS = ("attraction", "bus", "hospital", "hotel", "police", "restaurant", "taxi", "train")


def _names(path: Path, files: tuple[str, ...]) -> list[str]:
    """Return the dialogues that a list of the corpus names, one a line whatever its ending."""
    found = next((path.with_name(name) for name in files if path.with_name(name).exists()), None)
    return found.read_text(encoding="utf-8").split() if found else []
