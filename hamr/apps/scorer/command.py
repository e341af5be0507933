"""Arguments of `hamr scorer` and `hamr scorer check`."""

from __future__ import annotations

from hamr.apps.shared.commands import ConfiguredCommand, Count, Folder


class ScorerCommand(ConfiguredCommand):
    """Fine-tune the pools' scorers on labelled reply pairs where their raw model carries no signal.

    Every pool with a `finetune` section is trained on pairs of replies made from the training samples and measured on
    pairs of the test samples (and on `data.labelled_pairs`, if there are any), before and after, next to word overlap:
    accuracy, AUC, precision and recall of wrong replies, calibration. A grader (`role: grader`) is trained on labelled
    responses, the sets of `hamr data hallucination` in one file, to give one judged reward, and measured on held-out
    ones. The models are cached, and `hamr train` uses them; figures and reliability plots go into the run folder.

      pools.reranker.model=Qwen/Qwen3-4B
      pools.reranker.finetune={when: always, batch_size: 16, epochs: 3, learning_rate: 1.0e-5, lora: {}}
      pools.checker={role: grader, structured: true, finetune: {labelled: judged.jsonl, reward: hallucination}}
      experiment.run_dir=FOLDER
    """

    examples = ("hamr scorer experiment=scorer_lora data=data/own",)
    work = "hamr.apps.scorer.run:start"


class ScorerCheckCommand(ConfiguredCommand):
    """Ask the scorers of a job whether a wrong reply can beat the right ones, before RL finds it.

    For each of `contexts` references of the test split they see right rewordings and wrong replies: other acts, wrong
    facts, negations, courtesies, fragments, shuffled and repeated words of the reference, chatter. Printed for
    reranker, judge and cascade: the share of contexts in which the best wrong reply outscores the median right one, and
    these replies.
    """

    examples = ("hamr scorer check experiment=quickstart contexts=50 output=check",)
    work = "hamr.apps.scorer.check:check"

    output: Folder | None = None
    """Folder of scorer_check.json, which also has a table of acts, the machine and the versions."""
    contexts: Count = 200
    """References of the test split that are used."""
    overwrite: bool = False
    """Replace an existing scorer_check.json."""
