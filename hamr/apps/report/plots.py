"""The plots of a report, in order, and their files in `plots/*.png`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.report import plots_dialogues as dialogues
from hamr.apps.report import plots_learning as learning
from hamr.apps.report import plots_sft as sft
from hamr.apps.report import plots_training as training
from hamr.apps.report.data import ReportData
from hamr.report.plot_kit import STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot with its `caption` and its `alt` text for screen readers."""

    name: str
    title: str
    caption: str
    draw: Callable[[ReportData], Figure | None]
    wide: bool = False


def draw_all(data: ReportData, folder: Path) -> dict[str, Path]:
    """Draw all plots with data into `folder/<name>.png`; return name -> file. Removes outdated plots of an earlier
    report."""
    import matplotlib

    folder.mkdir(exist_ok=True)
    files: dict[str, Path] = {}
    with matplotlib.rc_context(STYLE):
        for plot in (p for plots in SECTIONS.values() for p in plots):
            path = folder / f"{plot.name}.png"
            figure = plot.draw(data)
            if figure is None:
                path.unlink(missing_ok=True)
            else:
                figure.savefig(path)
                files[plot.name] = path
    return files


def _plot(name: str, title: str, caption: str, draw: Callable[[ReportData], Figure | None], wide: bool = False) -> Plot:
    return Plot(name=name, title=title, caption=caption, draw=draw, wide=wide)


SECTIONS: dict[str, tuple[Plot, ...]] = {
    "sft": (
        _plot("validation_loss", "Validation loss", "Held-out items of each set of the mix.", sft.validation_loss),
        _plot(
            "loss_by_part",
            "Loss by part of the target",
            "At the last validation: reasoning, action, predicted environment, next action.",
            sft.loss_by_part,
        ),
        _plot("sft_learning_rate", "Learning rate", "", sft.learning_rate),
    ),
    "learning": (
        _plot(
            "learning_curve",
            "Learning curve",
            "Total reward of each step's responses, and the exact-act rule, which is never rewarded. Held out: "
            "responses to decisions never trained on.",
            learning.learning_curve,
            wide=True,
        ),
    ),
    "held_out": (
        _plot(
            "held_out",
            "Decisions",
            "Share of held-out decisions; for format errors, lower is better.",
            learning.held_out,
        ),
        _plot("by_act", "By kind of decision", "On wordings that no training split contains.", learning.by_act),
        _plot(
            "rewards",
            "Reward by component",
            "Mean over the held-out responses that could be scored.",
            learning.rewards,
            wide=True,
        ),
        _plot(
            "dialogues",
            "Whole dialogues",
            "SAGE with simulated customers, out of 100. Own case: by the customer's assigned persona, without a judge.",
            dialogues.dialogue_curve,
            wide=True,
        ),
    ),
    "scoring": (
        _plot(
            "router_bands",
            "Replies by cascade branch",
            "Inside the trust interval the reranker's score is used, outside it the judge is asked (Eq. 4).",
            training.router_bands,
        ),
        _plot(
            "s_r_histogram",
            "Reranker scores",
            "All training replies that the reranker scored.",
            training.s_r_histogram,
        ),
        _plot(
            "scorer_auc",
            "Do the scorers carry signal?",
            "Consistent against inconsistent reply pairs: the probability that the consistent one scores higher.",
            learning.scorer_auc,
        ),
        _plot(
            "outcomes",
            "Failures and malformed responses",
            "A failure has no score and no advantage. A malformed response is not an action and scores 0.",
            training.outcomes,
        ),
    ),
    "health": (
        _plot("entropy", "Policy entropy", "A collapse to zero ends exploration.", training.entropy),
        _plot("grad_norm", "Gradient norm", "Before clipping.", training.grad_norm),
        _plot(
            "logprob_diff",
            "Trainer against rollout engine",
            "Log-probabilities of the same tokens after each weight sync; a jump would mean stale weights.",
            training.logprob_diff,
        ),
        _plot(
            "clipping",
            "Clipping and truncation",
            "Clipped tokens; tokens on which trainer and engine disagree; responses at the length limit.",
            training.clipping,
        ),
        _plot("lengths", "Response length", "Mean over the step's responses.", training.lengths),
        _plot("sft_loss", "SFT loss", "The warm-up before RL.", training.sft_loss),
    ),
    "time": (
        _plot("step_time", "Time per RL step", "Scoring overlaps with generation.", training.step_time, wide=True),
        _plot("phases", "Time per phase of the run", "", training.phases, wide=True),
    ),
}
