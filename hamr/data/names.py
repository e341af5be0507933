"""Names of persons by a named-entity recogniser: presidio with a spaCy pipeline, both optional."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hamr.errors import BadInput

NameFinder = Callable[[str], list[str]]
"""Returns the names in a text."""


def name_finder(pipeline: str) -> NameFinder:
    """Return a finder that uses a spaCy pipeline, by name or folder. Nothing is downloaded.

    Raises:
        BadInput: presidio or the pipeline is not installed.
    """
    if find_spec("presidio_analyzer") is None:
        raise BadInput("names", pipeline, "requires presidio; pip install 'presidio-analyzer>=2.2'")
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpEngineProvider
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer
    from spacy.util import is_package

    if not (is_package(pipeline) or (Path(pipeline) / "meta.json").is_file()):  # presidio would download it
        remedy = f"no such spaCy pipeline; python -m spacy download {pipeline}, or give the folder of one"
        raise BadInput("names", pipeline, remedy)
    models = [{"lang_code": "en", "model_name": pipeline}]  # any language: the code only connects the two parts
    engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models}).create_engine()
    recogniser = SpacyRecognizer(supported_entities=["PERSON"])
    analyzer = AnalyzerEngine(registry=RecognizerRegistry([recogniser], supported_languages=["en"]), nlp_engine=engine)

    def find(text: str) -> list[str]:
        found = analyzer.analyze(text, language="en", entities=["PERSON"])
        return [text[one.start : one.end].strip() for one in sorted(found, key=lambda one: one.start)]

    return find
