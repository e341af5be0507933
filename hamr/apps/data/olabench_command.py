"""Arguments of `hamr data olabench`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from hamr.apps.data.command import PoolNames
from hamr.apps.shared.commands import Command, ConfiguredCommand, Count, File, Folder, NonNegativeCount
from hamr.errors import BadInput
from hamr.types import Language


class OlabenchItemsCommand(ConfiguredCommand):
    """Items for `hamr evaluate benchmark=olabench` in items.jsonl, and responses with known faults for grading judges
    in planted.jsonl. Teachers reword these; the responses of every third wording keep it, and are in held_out.jsonl."""

    outputs: ClassVar = {"folder": ".", "items": "items.jsonl", "planted": "planted.jsonl"}
    takes_common = False

    output: Folder
    """Folder of items.jsonl and planted.jsonl."""
    overwrite: bool = False
    """Replace existing files in the folder."""
    core: NonNegativeCount = 90
    """Items of the core subset."""
    risk: NonNegativeCount = 30
    """Items of the risk subset."""
    hallucination: NonNegativeCount = 30
    """Items of the hallucination subset."""
    proportions: Literal["equal", "paper"] = "equal"
    """Kinds of the core items, and types of risk and hallucination: in equal parts, or as in the paper's Table 1, whose
    sizes are core=3000 risk=1000 hallucination=1000."""
    planted: NonNegativeCount | None = None
    """Items with planted faults. By default, all."""
    teacher: ClassVar[str | None] = None
    teachers: PoolNames = ()
    """Pools that reword the planted responses. By default, the shipped wordings are used as they are."""
    at_once: Count | None = None
    """Concurrent rewordings. By default, the capacity of the pools."""
    language: Language = "en"
    """Language of the items."""
    seed: int = 0
    """Determines the items."""

    @model_validator(mode="after")
    def _some_items(self) -> OlabenchItemsCommand:
        if not self.core + self.risk + self.hallucination:
            raise BadInput("core", 0, "asks for no items; ask for at least one in some subset")
        return self


class OlabenchScenarios(OlabenchItemsCommand):
    examples = ("hamr data olabench scenario=all output=data/olabench",)
    work = "hamr.apps.data.build_olabench:from_scenarios"

    scenario: Annotated[str, Field(title="NAME|PATH|all|NAME,NAME")]
    """Scenarios whose rule engines give the items."""


class OlabenchSamples(OlabenchItemsCommand):
    examples = ("hamr data olabench samples=data/own output=data/olabench risk=0",)
    work = "hamr.apps.data.build_olabench:from_samples"

    samples: Annotated[File, Field(title="SAMPLES.jsonl|FOLDER")]
    """Output of `hamr data import`: a file of samples, or a folder whose test split (or else training split) is
    used."""


class OlabenchLabels(Command):
    """A public corpus with human labels, in the format of labelled responses."""

    examples = ("hamr data olabench labels=pairs input=pairs.jsonl output=labelled.jsonl",)
    work = "hamr.apps.data.build_olabench:convert_labels"

    labels: Literal["hallucination", "pairs", "tau"]
    """Corpus."""
    input: Annotated[File, Field(title="FILE.jsonl")]
    """The corpus's JSONL."""
    output: Annotated[File, Field(title="LABELLED.jsonl")]
    """File of the labelled responses."""
    policies: Annotated[File | None, Field(title="FILE.json")] = None
    """The corpus's policies; required for tau."""
    overwrite: bool = False
    """Replace an existing output."""

    @model_validator(mode="after")
    def _has_policies(self) -> OlabenchLabels:
        if self.labels == "tau" and self.policies is None:
            raise BadInput("policies", None, "missing; give policies=<its JSON>")
        return self
