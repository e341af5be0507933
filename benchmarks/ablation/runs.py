"""Runs the arms, each a process of its own, and never one twice: what is finished is read, what was killed goes on.

    OUT/runs/<arm>/seed_<n>/        the run folder
    OUT/runs/<arm>/seed_<n>.json    what it is run with; another OUT is needed for other settings
    OUT/runs/<arm>/seed_<n>.log     what the process printed

A run is finished when its folder has a summary. A run that was killed goes on behind its newest checkpoint; one without
any begins anew, as nothing of it is of use. An arm that looks is not run where its twin (`arms.TWINS`) is finished.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ablation.arms import TWINS, Arm
from ablation.graders import Grader, served
from hamr.config.load import dump_config, load_config
from hamr.errors import BadInput
from hamr.jobs.pipeline import end_with_parent
from hamr.observability.checkpoints import Checkpoints

Start = Callable[[list[str], Path], int]
"""(arguments of `hamr`, log) -> exit code."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """`arms` by name; `files` are the data that every arm's settings name."""

    out: Path
    arms: Mapping[str, Arm]
    files: Sequence[Path]
    start: Start
    grader: Grader | None = None
    port: int = 0
    failed: set[Path] = field(default_factory=set)
    """Runs that this call does not try again, though many arms may start from one."""

    def folder(self, arm: Arm, seed: int) -> Path:
        return self.out / "runs" / arm.name / f"seed_{seed}"

    def finished(self, arm: Arm, seed: int) -> bool:
        return (self.answers(arm, seed)[0] / "summary.json").is_file()

    def answers(self, arm: Arm, seed: int) -> tuple[Path, str]:
        """The run whose evaluation has the arm's held-out responses, and which of its evaluations: of an arm that looks
        its own, or the first one of its twin where only that is finished."""
        own = self.folder(arm, seed)
        if arm.job != "look":
            return own, "rl"
        twin = self.arms.get(TWINS.get(arm.name, ""))
        others = self.folder(twin, seed) if twin is not None else own
        taken = not (own / "summary.json").is_file() and (others / "summary.json").is_file()
        return (others if taken else own), "base"

    def policy(self, arm: Arm, seed: int) -> Path:
        """What a finished SFT arm has learnt."""
        folder = self.folder(arm, seed)
        return folder / json.loads((folder / "summary.json").read_text())["sft"]["model"]

    def run(self, arm: Arm, seed: int) -> bool:
        """Whether it is finished now; what it starts from is run before it."""
        settings = [*arm.settings, f"experiment.seed={seed}"]
        if arm.start is not None:
            begun = self.arms[arm.start]
            if not self.run(begun, seed):
                return False
            settings = [*settings, f"model.path={self.policy(begun, seed)}"]
        self._check(arm, seed, settings)
        if self.folder(arm, seed) in self.failed:
            return False
        if not self.finished(arm, seed):
            asked = self._job(arm, seed, settings)
            print(f"{arm.name}, seed {seed}: hamr {' '.join(asked)}", flush=True)
            log = self.folder(arm, seed).with_suffix(".log")
            with served(self.grader, self.port) if arm.graded and self.grader else nullcontext():
                code = self.start(asked, log)
            if not self.finished(arm, seed):
                print(f"{arm.name}, seed {seed}: not finished (exit code {code}); see {log}", flush=True)
                self.failed.add(self.folder(arm, seed))
                return False
        self._prune(arm, seed)
        return True

    def _job(self, arm: Arm, seed: int, settings: Sequence[str]) -> list[str]:
        folder = self.folder(arm, seed)
        job = "sft" if arm.job == "sft" else "train"
        if (folder / "config.yaml").is_file() and Checkpoints(folder / "checkpoints").newest() is not None:
            return [job, f"resume={folder}"]
        if folder.exists():
            shutil.rmtree(folder)
        return [job, *settings, f"experiment.run_dir={folder}"]

    def _check(self, arm: Arm, seed: int, settings: Sequence[str]) -> None:
        """Raises BadInput where the folder holds a run of other settings or data: they would stand in one table."""
        note = self.folder(arm, seed).with_suffix(".json")
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in self.files}
        # The files that the settings name may change too: what counts is what they come to.
        config = dump_config(load_config(settings)).replace(str(self.out), "OUT")
        wanted = {
            "settings": [text.replace(str(self.out), "OUT") for text in settings],
            "config": hashlib.sha256(config.encode()).hexdigest()[:16],
            "data": digests,
        }
        if not note.is_file():
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(json.dumps(wanted, indent=1) + "\n")
        elif json.loads(note.read_text()) != wanted:
            raise BadInput("out", str(note), "was begun with other settings or data; give another out")

    def _prune(self, arm: Arm, seed: int) -> None:
        """A checkpoint is 1.9 GB, and of a finished run only an SFT arm's policy is used again."""
        checkpoints = self.folder(arm, seed) / "checkpoints"
        if arm.job != "sft":
            shutil.rmtree(checkpoints, ignore_errors=True)
            return
        policy = self.policy(arm, seed)
        for path in (p for step in checkpoints.iterdir() for p in step.iterdir() if p != policy):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def hamr_process(before: Sequence[str]) -> Start:
    """`hamr` in a process of this Python, which ends with this one. `before` is put in front of it (nice, ...)."""

    def start(args: list[str], log: Path) -> int:
        with log.open("a") as file:
            command = [*before, sys.executable, "-m", "hamr", *args]
            done = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=end_with_parent, check=False
            )
            return done.returncode

    return start
