"""The figures of a run's report, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hamr.apps.report import figures_dialogues as dialogues
from hamr.apps.report import figures_learning as learning
from hamr.apps.report import figures_sft as sft
from hamr.apps.report import figures_training as training
from hamr.apps.report.data import ReportData
from hamr.report.drawing import draw
from hamr.report.values import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MplFigure


@dataclass(frozen=True)
class RunFigure:
    """A figure that some runs have. `make` returns None for the others."""

    name: str
    title: str
    caption: str
    make: Callable[[ReportData], MplFigure | None]
    wide: bool = False

    def draw(self, data: ReportData, *, png: bool = True) -> Figure | None:
        return draw(self.name, self.title, partial(self.make, data), caption=self.caption, wide=self.wide, png=png)


SCORING = "The reward system"
SECTIONS: dict[str, tuple[str, tuple[RunFigure, ...]]] = {
    "Supervised fine-tuning": (
        "Loss in nats per token.",
        (
            RunFigure("sft_loss", "SFT loss", "On the items of each step.", training.sft_loss),
            RunFigure(
                "validation_loss", "Validation loss", "Held-out items of each set of the mix.", sft.validation_loss
            ),
            RunFigure(
                "loss_by_part",
                "Loss by part of the target",
                "At the last validation: reasoning, action, predicted environment, next action.",
                sft.loss_by_part,
            ),
            RunFigure("sft_learning_rate", "Learning rate", "", sft.learning_rate),
        ),
    ),
    "Did it learn?": (
        "Reward over the RL steps; the band holds the step's responses.",
        (
            RunFigure(
                "learning_curve",
                "Learning curve",
                "Total reward of each step's responses, and the exact-act rule, which is never rewarded. Held out: "
                "responses to decisions never trained on.",
                learning.learning_curve,
                wide=True,
            ),
        ),
    ),
    "Before and after training": (
        "Decisions not used in training, answered as set in experiment.evaluation and scored as in training.",
        (
            RunFigure(
                "held_out",
                "Decisions",
                "Share of held-out decisions; for format errors, lower is better.",
                learning.held_out,
            ),
            RunFigure("by_act", "By kind of decision", "On wordings that no training split contains.", learning.by_act),
            RunFigure(
                "rewards",
                "Reward by component",
                "Mean over the held-out responses that could be scored. By audits: as if every reply had been audited, "
                "with its 95 % interval.",
                learning.rewards,
                wide=True,
            ),
            RunFigure(
                "completion",
                "Completed cases",
                "Share of the dialogues in which the customer's case ended with the expected action.",
                dialogues.completion_curve,
                wide=True,
            ),
            RunFigure(
                "dialogues",
                "Whole dialogues",
                "SAGE with simulated customers, out of 100. Own case: by the assigned persona, without a judge.",
                dialogues.dialogue_curve,
                wide=True,
            ),
        ),
    ),
    SCORING: (
        "",
        (
            RunFigure(
                "router_bands",
                "Replies by cascade branch",
                "Inside the trust interval the reranker's score is used, outside it the judge is asked (Eq. 4).",
                training.router_bands,
            ),
            RunFigure(
                "s_r_histogram",
                "Reranker scores",
                "All training replies that the reranker scored.",
                training.s_r_histogram,
            ),
            RunFigure(
                "scorer_auc",
                "Do the scorers carry signal?",
                "Consistent against inconsistent reply pairs: the probability that the consistent one scores higher.",
                learning.scorer_auc,
            ),
            RunFigure(
                "outcomes",
                "Failures and malformed responses",
                "A failure has no score and no advantage. A malformed response is not an action and scores 0.",
                training.outcomes,
            ),
        ),
    ),
    "Training health": (
        "Early warning signals for problems with the reward.",
        (
            RunFigure("entropy", "Policy entropy", "A collapse to zero ends exploration.", training.entropy),
            RunFigure("grad_norm", "Gradient norm", "Before clipping.", training.grad_norm),
            RunFigure(
                "logprob_diff",
                "Trainer against rollout engine",
                "Log-probabilities of the same tokens after each weight sync; a jump would mean stale weights.",
                training.logprob_diff,
            ),
            RunFigure(
                "clipping",
                "Clipping and truncation",
                "Clipped tokens; tokens on which trainer and engine disagree; responses at the length limit.",
                training.clipping,
            ),
            RunFigure("lengths", "Response length", "Mean over the step's responses.", training.lengths),
        ),
    ),
    "Time": (
        "",
        (
            RunFigure(
                "step_time", "Time per RL step", "Scoring overlaps with generation.", training.step_time, wide=True
            ),
        ),
    ),
}
"""Title of a section -> its lead and its figures."""
LATER = ("Training health", "Time")
"""Sections that a live page does not have."""
