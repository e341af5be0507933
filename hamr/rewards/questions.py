"""The question that the consistency scorers answer: does the response lead the customer as the reference does?"""

from __future__ import annotations

from hamr.data.rendering import dialogue_text
from hamr.types import Question, Reply, ServiceSample


def consistency_question(sample: ServiceSample, reference: Reply, reply: Reply) -> Question:
    """`statement_a` is the reference, `statement_b` the response, `history` the dialogue before both.

    The variables that the responses of a group share come first in every template, and the sample's id as
    affinity keeps the group on one replica while its load allows: its prompt prefix is computed once.
    """
    return Question(
        variables={
            "history": dialogue_text(sample),
            "statement_a": reference.content,
            "statement_b": reply.content,
        },
        affinity=sample.id,
    )
