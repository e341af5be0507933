"""Table of all commands. It imports no command, so that the list of jobs is quick.

A path has the words after `hamr`; the command with the longest matching path is run. A word of a path with a value
(`benchmark=ecs`) or a flag may be anywhere in the command, a word that ends in `=` means that the option is given.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from hamr.errors import BadInput, did_you_mean

_DATA = "hamr.apps.data.command"
_IMPORT = "hamr.apps.data.import_command"
_RECIPE = "hamr.apps.data.recipe_command"
_OLABENCH = "hamr.apps.data.olabench_command"
_EVALUATE = "hamr.apps.evaluate.command"
_CALIBRATE = "hamr.apps.calibrate.command"

JOBS: dict[str, tuple[str, str]] = {
    "train": ("hamr.apps.train.command:TrainCommand", "run RL training: rollout, reward cascade, update, sync"),
    "train pipeline=": ("hamr.apps.pipeline.command:RunPipeline", "run the stages of a pipeline in sequence"),
    "train --multirun": (
        "hamr.apps.pipeline.command:TrainSweep",
        "run every combination of values in sequence",
    ),
    "sft": ("hamr.apps.sft.command:SftCommand", "run supervised fine-tuning on a prepared mix"),
    "sft --multirun": ("hamr.apps.pipeline.command:SftSweep", "run every combination of values in sequence"),
    "sft preview": (
        "hamr.apps.sft.command:PreviewCommand",
        "show items with the tokens that carry loss; train nothing",
    ),
    "data": ("", "build data: generated dialogues, augmented samples, imported corpora"),
    "data sage": (f"{_DATA}:SageCommand", "generate dialogues over a procedure"),
    "data words": (f"{_DATA}:WordsCommand", "write or fill the wordings of a procedure"),
    "data import": (f"{_IMPORT}:ImportCorpus", "import a public corpus or chats as samples"),
    "data import tickets": (f"{_IMPORT}:ImportTickets", "import a ticket export as samples"),
    "data import tickets --preview": (f"{_IMPORT}:PreviewTickets", "propose a mapping for a ticket export"),
    "data import zendesk": (f"{_IMPORT}:ImportZendesk", "import tickets of Zendesk as samples"),
    "data import intercom": (f"{_IMPORT}:ImportIntercom", "import conversations of Intercom as samples"),
    "data patm": (f"{_RECIPE}:PatmCommand", "rewrite planning windows of whole tickets, as SFT items"),
    "data dra": (f"{_RECIPE}:DraCommand", "add the reasoning behind decisions and plans, as SFT items"),
    "data multigt": (f"{_RECIPE}:MultiGtCommand", "add references to samples"),
    "data thought": ("", "extract thoughts from experts, and migrate them to other cases"),
    "data thought step=extract": (f"{_RECIPE}:ExtractThoughts", "extract the reasoning behind experts' actions"),
    "data thought step=migrate": (f"{_RECIPE}:MigrateThoughts", "write thoughts for other cases, then responses"),
    "data sampled": (f"{_DATA}:SampledCommand", "select the best responses of an RL run, as SFT items"),
    "data hallucination": (f"{_DATA}:HallucinationCommand", "build data for a hallucination judge, with human review"),
    "data rubrics": (f"{_RECIPE}:RubricsCommand", "write a rubric for every sample"),
    "data olabench": ("", "build items for OlaBench, and responses with known faults"),
    "data olabench scenario=": (f"{_OLABENCH}:OlabenchScenarios", "from scenarios' rule engines"),
    "data olabench samples=": (f"{_OLABENCH}:OlabenchSamples", "from imported samples"),
    "data olabench labels=": (f"{_OLABENCH}:OlabenchLabels", "from a public corpus with human labels"),
    "data preview": (f"{_DATA}:PreviewSamples", "print what the policy sees for some samples, with token counts"),
    "generate": (
        "hamr.apps.generate.command:GenerateCommand",
        "generate responses to samples with a policy, with log-probabilities and rewards",
    ),
    "score": (
        "hamr.apps.score.command:ScoreCommand",
        "score a JSONL of finished responses with the whole reward system",
    ),
    "serve": ("hamr.apps.serve.command:ServeCommand", "serve the whole reward system over HTTP, for other trainers"),
    "calibrate": ("", "fit the cascade to scores with teacher labels"),
    "calibrate scores=": (f"{_CALIBRATE}:CalibrateScores", "fit to a file of scores"),
    "calibrate pairs=": (f"{_CALIBRATE}:CalibratePairs", "query the pools about labelled pairs, then fit"),
    "calibrate items=": (f"{_CALIBRATE}:CalibrateItems", "fit to recorded answers to the items of rubrics"),
    "calibrate samples=": (
        f"{_CALIBRATE}:CalibrateSamples",
        "query the pools about replies to samples, then fit",
    ),
    "evaluate": ("", "score a policy, a set of responses or an endpoint"),
    "evaluate benchmark=ecs": (f"{_EVALUATE}:EvaluateEcs", "let judges compare responses with their references"),
    "evaluate benchmark=olabench": (f"{_EVALUATE}:EvaluateOlabench", "let judges grade policies' responses to items"),
    "evaluate benchmark=plans": (f"{_EVALUATE}:EvaluatePlans", "let a judge compare policies' plans with gold plans"),
    "evaluate benchmark=sage": (f"{_EVALUATE}:EvaluateSage", "let simulated customers talk to agents"),
    "evaluate benchmark=tau2": (f"{_EVALUATE}:EvaluateTau2", "let agents solve the tasks of tau2-bench"),
    "scorer": ("hamr.apps.scorer.command:ScorerCommand", "fine-tune a scorer"),
    "scorer check": (
        "hamr.apps.scorer.command:ScorerCheckCommand",
        "check whether wrong replies outscore right ones",
    ),
    "submit": (
        "hamr.apps.submit.command:SubmitCommand",
        "submit a command to a Ray cluster, to Kubernetes or to Slurm",
    ),
    "status": ("hamr.apps.status.command:StatusCommand", "show the pools of a running job"),
    "scale": ("hamr.apps.status.command:ScaleCommand", "resize the pools of a running job"),
    "stop": ("hamr.apps.status.command:StopCommand", "stop a running job, which can be resumed"),
    "report": ("hamr.apps.report.command:ReportCommand", "write an HTML report with plots from a run folder"),
    "export": ("hamr.apps.export.command:ExportCommand", "write the policy of a run as a servable Hugging Face folder"),
    "chat": ("hamr.apps.chat.command:ChatCommand", "talk to the policy of a run in the terminal"),
    "plan": (
        "hamr.apps.plan.command:PlanCommand",
        "estimate replicas, GPUs and step time; write files to start a cluster",
    ),
    "config": ("", "show or explain the configuration of a job"),
    "config show": (
        "hamr.apps.config.command:ConfigShowCommand",
        "print the resolved configuration with the origin of every value",
    ),
    "config explain": ("hamr.apps.config.command:ConfigExplainCommand", "print type, default and meaning of a key"),
    "completion": ("hamr.apps.config.command:CompletionCommand", "print a completion script for a shell"),
    "doctor": ("hamr.apps.doctor.command:DoctorCommand", "show what this machine can run and what is missing"),
}
"""Path -> (model of the command, one line of help). A path without a model is a group of commands."""


def names() -> list[str]:
    """Return the first words of the commands."""
    return [path for path in JOBS if " " not in path]


def lookup(words: Sequence[str]) -> str:
    """Return the path that `words` name: of a command or of a group. Raises BadInput where several do."""
    found = [path for path in JOBS if _matches(path, words)]
    longest = max((len(path.split()) for path in found), default=0)
    best = [path for path in found if len(path.split()) == longest]
    if len(best) > 1:
        keys = [path.split()[-1] for path in best]
        raise BadInput(best[0].rpartition(" ")[0], " ".join(keys), f"give one of {_join_names(keys)}")
    if not best:
        raise BadInput("hamr", words[0] if words else None, f"no such job; there are: {', '.join(names())}")
    return best[0]


def find(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return (path of the command that `words` name, the other words). Raises BadInput if they name none."""
    path = lookup(words)
    if not JOBS[path][0]:
        raise _no_command(path, words)
    plain = [word for word in path.split() if _is_plain(word)]
    chosen = tuple(word.partition("=")[0] for word in path.split()[len(plain) :] if not word.endswith("="))
    return path, [word for word in words[len(plain) :] if word.partition("=")[0] not in chosen]


def load(path: str) -> Any:
    """Return the model of a command."""
    return import_name(JOBS[path][0])


def import_name(target: str) -> Any:
    """Return the class or function `module:name`."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def path_of(model: type) -> str:
    """Return the path of a model."""
    return next(path for path, (target, _) in JOBS.items() if target == f"{model.__module__}:{model.__name__}")


def siblings(path: str) -> list[str]:
    """Return the commands that differ from this one by an option: `calibrate pairs=` is one of `calibrate scores=`."""
    plain, last = path.rpartition(" ")[::2]
    return [other for other in JOBS if other != path and "=" in last and other.rpartition(" ")[0] == plain]


def _is_plain(word: str) -> bool:
    return "=" not in word and not word.startswith("-")


def _matches(path: str, words: Sequence[str]) -> bool:
    parts = path.split()
    plain = [word for word in parts if _is_plain(word)]
    return list(words[: len(plain)]) == plain and all(_is_given(part, words) for part in parts[len(plain) :])


def _is_given(part: str, words: Sequence[str]) -> bool:
    key, equals, value = part.partition("=")
    given = [word for word in words if word == key or word.startswith(f"{key}=")]
    return bool(given) and (not value or given[-1] == part) and bool(equals) == ("=" in given[-1])


def _no_command(group: str, words: Sequence[str]) -> BadInput:
    """Return the error for words that name only a group."""
    choices = list(dict.fromkeys(path.removeprefix(group).split()[0] for path in JOBS if path.startswith(f"{group} ")))
    key, equals, value = choices[0].partition("=")
    if equals and not value:
        return BadInput(key, None, f"give one of {_join_names(choices)}")
    rest = words[len(group.split()) :]
    where = key if equals else group
    if equals:
        choices = [choice.partition("=")[2] for choice in choices]
        rest = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")][-1:]
    given = rest[0] if rest else None
    what = key if equals else "command"
    known = ", ".join(choices)
    if not given:
        return BadInput(where, None, f"missing; give {f'{key}=<name>, ' if equals else ''}one of: {known}")
    return BadInput(where, given, f"no such {what}; {did_you_mean(given, choices, 0.5)}there are: {known}")


def _join_names(names: Sequence[str]) -> str:
    shown = [f"{name}..." if name.endswith("=") else name for name in names]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
