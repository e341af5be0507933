"""`hamr data`: builds train.jsonl, validation.jsonl and test.jsonl from a generator or a public corpus."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from hamr.config.schema import DataConfig
from hamr.data.importers import IMPORTERS
from hamr.data.rendering import policy_messages
from hamr.data.samples import write_samples
from hamr.data.splits import Splits, split_samples
from hamr.data.telecom import act_of, generate
from hamr.errors import BadInput, DataError
from hamr.types import ServiceSample, ToolCall

HELP = """\
hamr data: builds samples for training, validation and test.

usage:
  hamr data sage output=FOLDER [data.sage.train=600] [data.sage.validation=80] [data.sage.test=120] [data.sage.seed=0]
      generated dialogues over the Telecom Package procedure; the splits share no sentence
  hamr data sage scenario=NAME|PATH|all output=FOLDER [language=en] [form=actions|sage] [data.sage.train=600] ...
      the same over any procedure of conf/scenarios, or your own; all: over every one that ships, in equal parts.
      Beside it stand its wordings: words/NAME.LANGUAGE.yaml. form=sage: answers as `hamr evaluate benchmark=sage` asks
      for them, one JSON object with labels, path, action and chat
  hamr data import star input=STEPS.jsonl policies=POLICIES.json output=FOLDER [held_out_frac=0.15] [seed=0]
      a public corpus; whole dialogues go to one split
  hamr data rubrics input=SAMPLES.jsonl output=FILE.jsonl teacher=POOL [judge=POOL] [candidates=4] [worse=3]
      [min_separation=0.1] [language=en|zh] [seed=0] [overrides]
      a rubric for every sample: the teacher writes candidates, the judge says which tells the references from worse
      responses best (the sample's own privileged.negatives, a list of texts, then other samples' references); the same
      command goes on where it stopped

options:
  overwrite=true    replace the files that FOLDER holds already

sage and import write train.jsonl, validation.jsonl and test.jsonl; train on them with `hamr train data=FOLDER`."""

Number = TypeVar("Number", int, float)

_SPLITS = ("train", "validation", "test")


def main(args: list[str]) -> int:
    """Runs one recipe. Raises BadInput for anything that the user has to change."""
    recipes: dict[str, Callable[[list[str]], int]] = {"sage": _sage, "import": _import, "rubrics": _rubrics}
    if not args or args[0] not in recipes:
        given = args[0] if args else None
        raise BadInput("hamr data", given, f"no such recipe; there are: {', '.join(recipes)}")
    return recipes[args[0]](args[1:])


def _sage(args: list[str]) -> int:
    from hamr.config.load import load_config

    own, overrides = _options(args, ("output", "overwrite", "scenario", "language", "form"), others=("data.", "--"))
    folder = _output(own)
    data = load_config(["data=sage", *overrides]).data
    if "scenario" in own:
        from hamr.jobs.build_sage import build

        print(f"generating dialogues of {own['scenario']} (seed {data.sage.seed}) into {folder}", flush=True)
        _write(folder, build(own["scenario"], own.get("language", "en"), own.get("form", "actions"), data.sage))
        return 0
    for name in ("language", "form"):
        if name in own:
            raise BadInput(name, own[name], "goes with scenario=...; give scenario=<name, path or all> too")
    print(f"generating telecom dialogues (seed {data.sage.seed}) into {folder}", flush=True)
    _write(folder, generate(data.sage))
    return 0


def _import(args: list[str]) -> int:
    if not args or args[0] not in IMPORTERS:
        given = args[0] if args else None
        raise BadInput("hamr data import", given, f"no such corpus; there are: {', '.join(IMPORTERS)}")
    importer = IMPORTERS[args[0]]
    own, _ = _options(args[1:], (*importer.files, "output", "overwrite", "held_out_frac", "seed"))
    for name, what in importer.files.items():
        if name not in own:
            raise BadInput(name, None, f"missing; give {name}=<{what}>")
    folder = _output(own)
    fraction = _number(own, "held_out_frac", float, DataConfig.model_fields["held_out_frac"].default)
    if not 0.0 < fraction < 0.5:
        raise BadInput("held_out_frac", fraction, "must be between 0 and 0.5: two splits of it are taken off")
    seed = _number(own, "seed", int, 0)
    print(f"importing {args[0]} from {own['input']} into {folder}", flush=True)
    samples = importer({name: Path(own[name]) for name in importer.files})
    _write(folder, split_samples(samples, {}, held_out_frac=fraction, seed=seed))
    return 0


def _rubrics(args: list[str]) -> int:
    from hamr.jobs.build_rubrics import OPTIONS, build

    own = {key: value for key, equals, value in (arg.partition("=") for arg in args) if equals and key in OPTIONS}
    return build(own, [arg for arg in args if arg.partition("=")[0] not in own])


# --- options -----------------------------------------------------------------------------------


def _options(args: Sequence[str], known: Sequence[str], others: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """(the recipe's own key=value options, what starts with one of `others` and goes to the configuration)."""
    own: dict[str, str] = {}
    rest = []
    for arg in args:
        key, equals, value = arg.partition("=")
        if key in known and equals:
            own[key] = value
        elif others and arg.startswith(tuple(others)):
            rest.append(arg)
        else:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}=...? " if near else ""
            raise BadInput("hamr data", arg, f"unknown option; {hint}there are: {', '.join(known)}")
    return own, rest


def _number(own: dict[str, str], name: str, kind: type[Number], default: Number) -> Number:
    if name not in own:
        return default
    try:
        return kind(own[name])
    except ValueError as error:
        raise BadInput(name, own[name], "must be a number") from error


def _output(own: dict[str, str]) -> Path:
    """The folder to write to, which must not hold samples yet unless they may be replaced."""
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<folder>")
    if own.get("overwrite", "false") not in ("true", "false"):
        raise BadInput("overwrite", own["overwrite"], "must be true or false")
    folder = Path(own["output"]).expanduser()
    if folder.exists() and not folder.is_dir():
        raise DataError("output", str(folder), "is a file; give a folder")
    held = [name for name in _SPLITS if (folder / f"{name}.jsonl").exists()]
    if held and own.get("overwrite") != "true":
        raise DataError("output", str(folder), f"holds {held[0]}.jsonl already; give another folder or overwrite=true")
    return folder


# --- writing -----------------------------------------------------------------------------------


def _write(folder: Path, splits: Splits) -> None:
    for name in _SPLITS:
        write_samples(folder / f"{name}.jsonl", getattr(splits, name))
    console = Console()
    console.print(_overview(splits))
    console.print(_kinds(splits))
    print(f"written: {', '.join(str(folder / f'{name}.jsonl') for name in _SPLITS)}")


def _overview(splits: Splits) -> Table:
    table = Table("split", "samples", "dialogues", "turns", "words", "longest", "references", "tool calls")
    table.title = "samples (turns, words of the prompt and references: mean)"
    for name in _SPLITS:
        table.add_row(name, *_figures(getattr(splits, name)))
    return table


def _figures(samples: Sequence[ServiceSample]) -> list[str]:
    if not samples:
        return ["0"] + ["-"] * 6
    calls = sum(isinstance(s.references[0].action, ToolCall) for s in samples)
    words = [len(" ".join(m["content"] for m in policy_messages(s)).split()) for s in samples]
    return [
        str(len(samples)),
        str(len({s.meta.get("dialogue", s.id) for s in samples})),
        f"{mean(len(s.history) for s in samples):.1f}",
        f"{mean(words):.0f}",
        str(max(words)),
        f"{mean(len(s.references) for s in samples):.1f}",
        f"{calls / len(samples):.0%}",
    ]


def _kinds(splits: Splits) -> Table:
    """Counts by what the gold action is: the act where the builder names it, else reply or the tool."""
    table = Table("gold action", *_SPLITS, title="gold actions")
    counts = {name: Counter(_kind(s) for s in getattr(splits, name)) for name in _SPLITS}
    for kind in sorted(set().union(*counts.values())):
        table.add_row(kind, *(str(counts[name][kind]) for name in _SPLITS))
    return table


def _kind(sample: ServiceSample) -> str:
    action = sample.references[0].action
    return f"call {action.name}" if isinstance(action, ToolCall) else f"reply: {act_of(sample)}".removesuffix(": reply")
