"""Why the agent of a generated dialogue acts as it does, in a sentence, from what the procedure saw: known to be right,
since it is what the act follows from. It stands in for a teacher's reasoning where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping

from hamr.data.telecom import act_of
from hamr.errors import DataError
from hamr.types import ServiceSample

_SEEN = {
    ("EmotionTag", "Calm"): "They accept the fee",
    ("EmotionTag", "Discontent"): "They are angry about the fee",
    ("ApplicationTendency", "Agree"): "They take the offer",
    ("ApplicationTendency", "Reject"): "They decline the offer",
    ("ApplicationTendency", "Hesitate"): "They cannot decide",
    ("ConsumptionProfile", "Data"): "They mostly use data",
    ("ConsumptionProfile", "Voice"): "They mostly call",
    ("ConsumptionType", "Change"): "They want another package",
    ("ConsumptionType", "Cancel"): "They want to cancel",
    ("ConsumptionType", "Enquiry"): "They want advice, and I do not know their use",
}
"""What the dialogue has shown last decides; in this order a later thing stands before an earlier one."""
_DONE: Mapping[str, str] = {
    "ask_profile": "I ask whether it is data or voice.",
    "recommend": "I make the offer that fits.",
    "penalty_notice": "a fee is due: I name it first.",
    "goodbye": "I say goodbye.",
    "change_order": "nothing stands in the way: I change the order.",
    "transfer_human": "I hand over to a person.",
}


def thought_of(sample: ServiceSample) -> str:
    """Raises DataError for a sample that `hamr.data.telecom` did not make.

    >>> thought_of(sample)                                                       # doctest: +SKIP
    'They want to cancel; a fee is due: I name it first.'
    """
    shown, act = sample.meta.get("fields"), act_of(sample)
    seen = next((text for (name, value), text in _SEEN.items() if (shown or {}).get(name) == value), None)
    if seen is None or act not in _DONE or "slots" not in sample.meta:
        raise DataError(
            f"sample {sample.id}", act, "is not one of the generated telecom dialogues, which know their why"
        )
    return f"{seen}; {_DONE[act]}"
