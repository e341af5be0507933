"""The papers' ablations as one Hydra multirun over the bundled model and generated data: which orderings are there?

    python benchmarks/ablations.py                                     # all arms, seeds 0, 1 and 2
    python benchmarks/ablations.py seed=0 arm=init,ours                # one seed; a part of the arms and one by name
    python benchmarks/ablations.py arm=none                            # the judge, tables and plots of what is finished
    python benchmarks/ablations.py --help

Every arm and seed is a `hamr sft` or `hamr train` of its own. What is finished is not run again, what was killed goes
on: the same command, or one with more seeds or arms, may be given as often as needed. README.md beside this file says
how to read what comes out.
"""

from __future__ import annotations

import json
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from ablation import world  # noqa: E402
from ablation.arms import Arm, arms, options  # noqa: E402
from ablation.figures import (  # noqa: E402
    entropies,
    exact_scores,
    judge_scores,
    last_third,
    read_votes,
    said,
    write_answers,
)
from ablation.graders import Grader, write_prompts  # noqa: E402
from ablation.runs import Start, Sweep, hamr_process  # noqa: E402
from ablation.tables import TABLES, Claim, as_json, claims, counted, entropy_claim, markdown  # noqa: E402

from hamr.data.samples import read_samples  # noqa: E402
from hamr.errors import BadInput, HamrError  # noqa: E402
from hamr.evaluation.folder import locked  # noqa: E402

NAME = "ablations"
HAMR = "+hamr."
"""Before an override of every run."""


@dataclass
class Settings:
    """`--help` says what they mean."""

    seed: int = 0
    arms: list[str] = field(default_factory=list)
    items: int = world.SFT_ITEMS
    judge: bool = True
    hamr: dict[str, Any] = field(default_factory=dict)
    out: str = f"runs/{NAME}"
    results: str = str(HERE / "results")
    before: str = ""
    port: int = 8377


def main() -> int:
    """Hydra calls `one` for every combination of a seed and an option of `arm`."""
    store = ConfigStore.instance()
    store.store(name="settings", node=Settings)
    for name, chosen in options().items():
        store.store(group="arm", name=name, node={"arms": list(chosen)}, package="_global_")
    calls: list[Call] = []

    def one(config: DictConfig) -> None:
        # Behind any exception but SystemExit, Hydra would go on with the next combination.
        with ending():
            if not calls:
                calls.append(Call(config))
            calls[0].run(config)

    hydra.main(version_base="1.3", config_path="ablation", config_name="sweep")(one)()
    with ending():
        return calls[0].end() if calls else 0


@contextmanager
def ending() -> Iterator[None]:
    try:
        yield
    except HamrError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2 if isinstance(error, BadInput) else 1) from None
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


class Call:
    """All combinations of one call. Raises BadInput where another call is at work in the same folder: it would take an
    unfinished run for a killed one."""

    def __init__(self, config: DictConfig) -> None:
        self.shared = _shared(config)
        self.start = hamr_process(shlex.split(config.before))
        out = Path(config.out).resolve()
        self.lock = locked(out)  # held as long as this object lives
        self.sweep = prepared(out, config, self.start, [o.removeprefix(HAMR) for o in _typed() if o.startswith(HAMR)])
        self.left: list[str] = []

    def run(self, config: DictConfig) -> None:
        """One combination."""
        if _shared(config) != self.shared:
            raise BadInput("overrides", _typed(), "only arm and seed have several values here; give another out")
        self.left += run_arms(self.sweep, config.arms, config.seed)

    def end(self) -> int:
        """The judge and the tables, of all that is finished in the folder."""
        seeds = finished_seeds(self.sweep)
        if not _finished(self.sweep, seeds):
            print(f"no arm with responses is finished in {self.sweep.out}: there is nothing for tables")
        else:
            if self.shared["judge"]:
                ask_judge(self.sweep, seeds, self.start)
            found, curves = everything(self.sweep, seeds)
            write(Path(self.shared["results"]), found, curves, seeds)
        for one in self.left:
            print(f"not finished: {one}")
        return 1 if self.left else 0


def _shared(config: DictConfig) -> dict[str, Any]:
    """What every combination has in common."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key not in ("seed", "arms")}


def _typed() -> list[str]:
    return list(HydraConfig.get().overrides.task)


def run_arms(sweep: Sweep, names: Sequence[str], seed: int) -> list[str]:
    """What could not be finished."""
    runs = [(sweep.arms[name], number) for name in names for number in seeds_of(sweep.arms[name], [seed])]
    return [f"{arm.name}, seed {number}" for arm, number in runs if not sweep.run(arm, number)]


def prepared(out: Path, config: DictConfig, start: Start, others: Sequence[str]) -> Sweep:
    """Data and prompts are written anew by every call; they are the same unless the code that makes them changed."""
    files = world.prepare(out / "data", config["items"])
    prompts = write_prompts(out / "prompts")
    listed = arms(files, f"http://127.0.0.1:{config.port}/v1", prompts, others)
    samples = [sample for name in ("single", "test") for sample in read_samples(files[name])]
    return Sweep(
        out=out,
        arms={arm.name: arm for arm in listed},
        files=sorted(files.values()),
        start=start,
        grader=Grader(samples, prompts),
        port=config.port,
    )


def seeds_of(arm: Arm, seeds: Sequence[int]) -> Sequence[int]:
    """With which seeds an arm is run: one run of what no seed changes stands for all."""
    return (0,) if seedless(arm) else seeds


def seedless(arm: Arm) -> bool:
    """The bundled model answers the same whatever the seed: held-out luck follows from the prompts."""
    return arm.job == "look" and arm.start is None


def finished_seeds(sweep: Sweep) -> list[int]:
    runs = (sweep.out / "runs").glob("*/seed_*/summary.json")
    return sorted({int(path.parent.name.removeprefix("seed_")) for path in runs})


def ask_judge(sweep: Sweep, seeds: Sequence[int], start: Start) -> None:
    """One call for the answers of all arms: most of them were given by several. Votes are kept between calls."""
    folder = sweep.out / "judge"
    folder.mkdir(exist_ok=True)
    finished = [(said(sweep, arm, seed), arm.response_format) for arm, seed in _finished(sweep, seeds)]
    count = write_answers(folder / "answers.jsonl", finished)
    data = {name: sweep.out / "data" / f"{file}.jsonl" for name, file in _JUDGES_DATA.items()}
    print(f"judge: {count} different answers of {len(finished)} runs", flush=True)
    code = start(
        [
            "evaluate",
            "benchmark=ecs",
            f"input={folder / 'answers.jsonl'}",
            f"output={folder / 'votes'}",
            "judges=judge",
            "scores=soft",
            "data.type=jsonl",
            *(f"data.{name}={path}" for name, path in data.items()),
            "model.response_format=plain",
        ],
        folder / "judge.log",
    )
    if code:
        raise HamrError(f"the judge is not done (exit code {code}); see {folder / 'judge.log'}, and call again")


_JUDGES_DATA = {"train": "single", "validation": "validation", "test": "test"}
"""What the judge was trained on: the same pairs as in the RL arms, so that it is the same cached model."""


def _finished(sweep: Sweep, seeds: Sequence[int]) -> list[tuple[Arm, int]]:
    answering = [arm for arm in sweep.arms.values() if arm.job != "sft"]
    return [(arm, seed) for arm in answering for seed in seeds_of(arm, seeds) if sweep.finished(arm, seed)]


def everything(sweep: Sweep, seeds: Sequence[int]) -> tuple[list[Claim], dict[str, dict[int, list[float]]]]:
    """All claims, and the curves of Figure 2, from what is finished."""
    votes = read_votes(sweep.out / "judge" / "votes")
    scores: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for arm, seed in _finished(sweep, seeds):
        groups = said(sweep, arm, seed)
        exact = exact_scores(groups, arm.response_format)
        judged = judge_scores(groups, arm.response_format, votes)
        for measure, by_item in {**exact, **judged}.items():
            own = scores.setdefault(arm.name, {}).setdefault(measure, {})
            own.update(dict.fromkeys(seeds if seedless(arm) else [seed], by_item))
    curves = {
        name: {s: entropies(sweep.folder(sweep.arms[name], s)) for s in seeds if sweep.finished(sweep.arms[name], s)}
        for name in ("ours", "multi_gt")
    }
    thirds = {name: {s: last_third(curve) for s, curve in own.items() if curve} for name, own in curves.items()}
    found = [claim for table in TABLES for claim in claims(table, scores)]
    return [*found, entropy_claim(thirds["ours"], thirds["multi_gt"])], curves


def write(
    results: Path, found: Sequence[Claim], curves: dict[str, dict[int, list[float]]], seeds: Sequence[int]
) -> None:
    from ablation.plots import draw_entropy, draw_orderings

    results.mkdir(parents=True, exist_ok=True)
    texts = [markdown(t.title, [c for c in found if c.table == t.name]) for t in TABLES]
    kept: dict[str, Any] = {"seeds": list(seeds), "claims": as_json(found), "entropy": curves}
    (results / f"{NAME}.json").write_text(json.dumps(kept, indent=1) + "\n")
    (results / f"{NAME}.md").write_text("\n\n".join(texts) + "\n")
    draw_orderings(results / f"{NAME}_orderings.png", found)
    draw_entropy(results / f"{NAME}_entropy.png", curves)
    print("\n\n".join(texts))
    print(f"\norderings: {counted(found)}")


if __name__ == "__main__":
    sys.exit(main())
