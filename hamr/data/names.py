"""Names of persons by a named-entity recogniser: presidio with spaCy pipelines, both optional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from hamr.errors import BadInput

NameFinder = Callable[[str], list[str]]
"""Returns the names in a text."""


def name_finder(pipelines: Sequence[str]) -> NameFinder:
    """Return a finder of the names that any of the spaCy pipelines labels, each a name or a folder. Nothing is
    downloaded.

    Raises:
        BadInput: presidio or a pipeline is not installed, or a pipeline labels no persons.
    """
    if find_spec("presidio_analyzer") is None:
        given = ",".join(pipelines)
        raise BadInput("names", given, "requires presidio; pip install 'presidio-analyzer>=2.2'")
    finders = [_presidio(pipeline) for pipeline in pipelines]
    return lambda text: list(dict.fromkeys(name for find in finders for name in find(text)))


def _presidio(pipeline: str) -> NameFinder:
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer
    from spacy.util import is_package

    if not (is_package(pipeline) or (Path(pipeline) / "meta.json").is_file()):  # presidio would download it
        remedy = f"no such spaCy pipeline; python -m spacy download {pipeline}, or give the folder of one"
        raise BadInput("names", pipeline, remedy)
    # Any language: the code only connects the two parts.
    engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": pipeline}])
    try:
        engine.load()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise BadInput("names", pipeline, f"spaCy cannot load it ({reason}); install it again") from error
    nlp = engine.nlp["en"]
    # Components of other packages need not declare their labels.
    is_declared = all(type(part).__module__.startswith("spacy.") for _, part in nlp.pipeline)
    if is_declared and not {"PERSON", "PER"} & {label for labels in nlp.pipe_labels.values() for label in labels}:
        raise BadInput("names", pipeline, "labels no persons (PERSON or PER); give a pipeline with entity recognition")
    recogniser = SpacyRecognizer(supported_entities=["PERSON"])
    analyzer = AnalyzerEngine(registry=RecognizerRegistry([recogniser], supported_languages=["en"]), nlp_engine=engine)

    def find(text: str) -> list[str]:
        found = analyzer.analyze(text, language="en", entities=["PERSON"])
        return [text[one.start : one.end].strip() for one in sorted(found, key=lambda one: one.start)]

    return find
