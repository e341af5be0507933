"""Reason for the act of the agent in a generated dialogue, as a sentence derived from the procedure.

It is correct by construction, since the act follows from it, and replaces the reasoning of a teacher if there is none.
"""

from __future__ import annotations

from hamr.errors import DataError
from hamr.procedures.acts import ASK, SageActs
from hamr.types import ServiceSample

_FORMS = {"en": "The customer {seen}. {next}", "zh": "客户{seen}。{next}"}
_ASKED = {"en": "I have to find out {field}.", "zh": "我需要了解{field}。"}
_OPENING = {"en": "has just written", "zh": "刚刚来询"}


def thought_of(sample: ServiceSample) -> str:
    """Return the fact that the dialogue showed last and the resulting act.

    Raises:
        DataError: The sample is not from a shipped scenario.

    >>> thought_of(sample)                                                       # doctest: +SKIP
    'The customer wants to be rid of the package. Carry out the change or the cancellation.'
    """
    acts = SageActs.of(sample)
    if acts is None:
        raise DataError(f"sample {sample.id}", sample.meta.get("act"), "is not a dialogue of a shipped scenario")
    file, act, language = acts.scenario.file, str(sample.meta["act"]), str(sample.meta["language"])
    seen = _OPENING[language]
    if shown := sample.meta["fields"]:
        name, value = list(shown.items())[-1]
        seen = (file.fields[name].meanings or {})[value].of(language)
    if act.startswith(ASK):
        follows = _ASKED[language].format(field=file.fields[act.removeprefix(ASK)].description.of(language))
    else:
        follows = file.actions[act].description.of(language)
    return _FORMS[language].format(seen=seen.rstrip(".。"), next=follows)
