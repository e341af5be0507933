"""`hamr data`: builds train.jsonl, validation.jsonl and test.jsonl from a generator or a public corpus."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import cast

from rich.console import Console
from rich.table import Table

from hamr.apps.data.recipes.thought import ORDERS, Rendering
from hamr.apps.shared.job_options import one_of, options, output_folder
from hamr.config.schema import Config
from hamr.data.rendering import policy_messages
from hamr.data.sage_thoughts import thought_of
from hamr.data.samples import act_of, write_samples
from hamr.data.sft_items import decision_item, write_items
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.types import ServiceSample, ToolCall

HELP = """\
hamr data: builds samples for training, validation and test.

usage:
  hamr data sage output=FOLDER [scenario=NAME|PATH|all] [language=en|zh] [form=actions|sage]
      [data.sage.train=600] [data.sage.validation=80] [data.sage.test=120] [data.sage.seed=0]
      generated dialogues over a procedure of conf/scenarios (default: telecom_package), your own procedure, or all
      shipped ones in equal parts; the splits share no sentence. A procedure's wordings are next to its file, in
      words/NAME.LANGUAGE.yaml. form=sage: answers in the format of `hamr evaluate benchmark=sage`, one JSON object with
      labels, path, action and chat
      [data.sage.noise=0.4] also writes sft.jsonl, the training samples with this share of wrong references, like an
      erroneous log
      [thoughts=pre|post|hybrid] the agent's reasons, from the procedure: SFT items, in items.jsonl and
      held_out_items.jsonl, with the thought before the answer, after it, or one item of each
      [teacher=POOL|teachers=A,B] [judge=POOL] [temperature=0.8] [max_new_tokens=160] [at_once=N]: customers reworded
      by a teacher. A rewording is kept if it preserves numbers, names, negations and the shown fields, checked by its
      words and, if a judge is named, by the judge; otherwise the generated wording is used
  hamr data import tickets input=EXPORT.jsonl|.csv|.parquet mapping=MAP.yaml output=FOLDER
      a ticket export; the mapping names its columns (see config/tickets.py). Faulty tickets are excluded with one line
      of explanation each, and written to rejected.jsonl
  hamr data import star|abcd|tau2 input=FILE.jsonl policies=FILE.json output=FOLDER
  hamr data import messages input=FILE.jsonl output=FOLDER
      a public corpus, or chats in the `messages` form
      all imports: [held_out_frac=0.15] [seed=0] whole dialogues go to one split; [pii=hide|keep] typed aliases for
      phones, accounts, e-mails, domains, addresses, keys and signatures (hide for tickets and messages; a corpus of
      decision points then keeps the logged reference alone)
  hamr data patm input=TRAJECTORIES.jsonl output=ITEMS.jsonl teacher=POOL|teachers=A,B [judge=POOL] [split=train|all]
      planning windows of whole tickets, rewritten by the teachers, checked by rules and then by the judge
  hamr data dra input=SAMPLES.jsonl|ITEMS.jsonl output=ITEMS.jsonl teacher=POOL|teachers=A,B [judge=POOL]
      the reasoning behind decisions and plans
  hamr data multigt input=SAMPLES.jsonl output=SAMPLES.jsonl teacher=POOL|teachers=A,B [judge=judge] [utility=POOL|none]
      [candidates=8] [temperature=1.2] [ledger=RUN] [online=4] [summary=ticket_summary] [seed=0]
      more references per reply: candidates of a light model, and the likeliest replies of an RL run, if the judge
      finds them consistent with the logged one or the utility judge, which sees privileged.<summary>, finds them useful
  hamr data thought step=extract input=SAMPLES.jsonl output=ITEMS.jsonl teacher=POOL|teachers=A,B [judge=POOL]
      [min_cot=4] the reasoning behind experts' actions (each sample's first reference), for a Zero-Think model
  hamr data thought step=migrate input=SAMPLES.jsonl output=ITEMS.jsonl teacher=POOL|teachers=A,B [judge=POOL]
      [zero_think=POOL] [candidates=4] [temperature=1.0] [min_quality=4] [min_cot=4] [refine=1] [seed=0]
      thoughts by the Zero-Think model or the teachers, then a response based on them; the best draft that passes the
      dialogue's judge and the judge of chains, or else the best one, rewritten with their feedback
      both: [render=pre|post|hybrid] thoughts before the answer, after it, or one item of each (extract: pre, migrate:
      hybrid)
      all four: [language=en|zh] [max_new_tokens=N] [at_once=N] [overrides]; the same command resumes after a stop
  hamr data sampled input=SAMPLES.jsonl ledger=RUN output=ITEMS.jsonl min_total=R [best=1] [since=STEP]
      [render=pre|post|hybrid] the best responses of an RL run, by total reward, as SFT items for the next stage
  hamr data hallucination input=RESPONSES.jsonl output=FOLDER judge=POOL second=POOL [labels=REVIEWED.jsonl]
      [language=en|zh] [at_once=N] [overrides]
      data for a hallucination judge: responses that the judge clears and the second model confirms (simple.jsonl), and
      human labels of the rest (output review.jsonl, input labels: hard.jsonl and confirmed.jsonl)
  hamr data rubrics input=SAMPLES.jsonl output=FILE.jsonl teacher=POOL|teachers=A,B [judge=POOL] [candidates=4]
      [worse=3] [min_separation=0.1] [language=en|zh] [seed=0] [overrides]
      a rubric for every sample: the teacher writes candidates, and the one with which the judge best separates the
      references from worse responses is kept (worse responses: the sample's privileged.negatives, a list of texts, then
      other samples' references); the same command resumes after a stop
  hamr data olabench scenario=NAME|PATH|all|NAME,NAME output=FOLDER [core=90] [risk=30] [hallucination=30] [planted=N]
      [language=en|zh] [seed=0]
  hamr data olabench samples=SAMPLES.jsonl|FOLDER output=FOLDER [core=90] ...
      items for `hamr evaluate benchmark=olabench` (items.jsonl), from scenarios' rule engines or from the output of
      `hamr data import`, and responses with known faults for grading judges (planted.jsonl, for N items)
  hamr data olabench labels=hallucination|pairs|tau input=FILE.jsonl [policies=FILE.json] output=LABELLED.jsonl
      a public corpus with human labels, in the same format

options:
  overwrite=true    replace existing files in FOLDER

sage and import write train.jsonl, validation.jsonl and test.jsonl; train on them with `hamr train data=FOLDER`. import
also writes trajectories.jsonl and report.json."""

_SPLITS = ("train", "validation", "test")
_ITEMS = ("items", "held_out_items")
SAGE_OPTIONS = (
    *("output", "overwrite", "scenario", "language", "form"),
    *("teacher", "teachers", "judge", "at_once", "max_new_tokens", "temperature", "thoughts"),
)


def main(args: list[str]) -> int:
    """Run one recipe. Raises BadInput for invalid input."""
    recipes: dict[str, Callable[[list[str]], int]] = {
        "sage": _sage,
        "import": _import,
        "patm": _patm,
        "dra": _dra,
        "multigt": _multigt,
        "thought": _build_thought,
        "sampled": _build_sampled,
        "hallucination": _hallucination,
        "rubrics": _rubrics,
        "olabench": _olabench,
    }
    if not args or args[0] not in recipes:
        given = args[0] if args else None
        raise BadInput("hamr data", given, f"no such recipe; there are: {', '.join(recipes)}")
    return recipes[args[0]](args[1:])


def _sage(args: list[str]) -> int:
    from hamr.config.load import load_config

    own, overrides = options(args, SAGE_OPTIONS, others=("data.", "pools", "cluster", "--"))
    thoughts = one_of(own, "thoughts", ("none", *ORDERS), "none")
    folder = output_folder(
        own, [f"{name}.jsonl" for name in (*_SPLITS, "sft", *(_ITEMS if thoughts != "none" else ()))]
    )
    for name in ("scenario", "language"):
        if name in own:
            overrides.append(f"data.sage.{name}={own[name]}")
    if thoughts != "none" and own.get("form", "actions") != "actions":
        raise BadInput("thoughts", thoughts, "require form=actions; remove one")
    from hamr.apps.data.build_sage import build

    overrides = ["data=sage", *overrides]
    config = load_config(overrides).data.sage
    print(f"generating dialogues of {config.scenario} (seed {config.seed}) into {folder}", flush=True)
    splits = build(own, overrides, config, folder)
    _write(folder, splits)
    if thoughts != "none":
        _write_thoughts(folder, splits, cast(Rendering, thoughts))
    return 0


def _import(args: list[str]) -> int:
    from hamr.apps.data.import_data import import_data

    _show(*import_data(args))
    return 0


def _rubrics(args: list[str]) -> int:
    from hamr.apps.data.build_rubrics import OPTIONS, build

    return build(*_own(args, OPTIONS))


def _olabench(args: list[str]) -> int:
    from hamr.apps.data.build_olabench import build_olabench

    return build_olabench(args)


def _patm(args: list[str]) -> int:
    from hamr.apps.data.build_plans import PATM_OPTIONS, build_patm

    return build_patm(*_own(args, PATM_OPTIONS))


def _dra(args: list[str]) -> int:
    from hamr.apps.data.build_plans import OPTIONS, build_dra

    return build_dra(*_own(args, OPTIONS))


def _multigt(args: list[str]) -> int:
    from hamr.apps.data.build_multigt import MULTIGT_OPTIONS, build_multigt

    return build_multigt(*_own(args, MULTIGT_OPTIONS))


def _build_thought(args: list[str]) -> int:
    from hamr.apps.data.build_thought import THOUGHT_OPTIONS, build_thought

    return build_thought(*_own(args, THOUGHT_OPTIONS))


def _build_sampled(args: list[str]) -> int:
    from hamr.apps.data.build_sampled import OPTIONS, build_sampled

    return build_sampled(options(args, OPTIONS)[0])


def _hallucination(args: list[str]) -> int:
    from hamr.apps.data.build_hallucination import OPTIONS, build_hallucination

    return build_hallucination(*_own(args, OPTIONS))


def _own(args: list[str], known: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return (the recipe's own options, everything else as overrides of the configuration).

    Raises BadInput for a name that is close to an option and is not a configuration key.
    """
    own, overrides = {}, []
    for arg in args:
        key, equals, value = arg.partition("=")
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
        if equals and key in known:
            own[key] = value
        elif near and key.isidentifier() and key not in Config.model_fields:
            raise BadInput("hamr data", arg, f"unknown option; did you mean {near[0]}=...?")
        else:
            overrides.append(arg)
    return own, overrides


# --- writing -----------------------------------------------------------------------------------


def _write_thoughts(folder: Path, splits: Splits, rendering: Rendering) -> None:
    """Write every sample with each of its references, after or before the thought that leads to it.

    The training split is written as items.jsonl, the validation split as held_out_items.jsonl.
    """
    for name, samples in zip(_ITEMS, (splits.train, splits.validation), strict=True):
        items = [
            decision_item(sample, reference.action, thought_of(sample), answer_first=order)
            for sample in samples
            for reference in sample.references
            for order in ORDERS[rendering]
        ]
        write_items(folder / f"{name}.jsonl", items)
        print(f"written: {folder / name}.jsonl, {len(items)} SFT items", flush=True)


def _write(folder: Path, splits: Splits) -> None:
    for name in (*_SPLITS, *(("sft",) if splits.sft else ())):
        write_samples(folder / f"{name}.jsonl", getattr(splits, name))
    _show(folder, splits)
    if not splits.sft:
        (folder / "sft.jsonl").unlink(missing_ok=True)  # an outdated file of an earlier call would be trained on
    else:
        wrong = sum("references" in sample.privileged for sample in splits.sft)
        print(f"written: {folder / 'sft.jsonl'}, the same {len(splits.sft)} training samples, {wrong} of them wrong")


def _show(folder: Path, splits: Splits) -> None:
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
    """Count the gold actions by kind: the act where the builder names it, else reply or the tool."""
    table = Table("gold action", *_SPLITS, title="gold actions")
    counts = {name: Counter(_kind(s) for s in getattr(splits, name)) for name in _SPLITS}
    for kind in sorted(set().union(*counts.values())):
        table.add_row(kind, *(str(counts[name][kind]) for name in _SPLITS))
    return table


def _kind(sample: ServiceSample) -> str:
    action = sample.references[0].action
    return f"call {action.name}" if isinstance(action, ToolCall) else f"reply: {act_of(sample)}".removesuffix(": reply")
