"""summary.json of a training run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.apps.shared.summary import summarise_run
from hamr.config.load import load_config
from hamr.errors import HamrError
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import read_summary, write_summary


@pytest.mark.parametrize(
    ("configured", "rows", "found"),
    [
        ("shared_prompt", [{"policy/padded": 0.0}], "shared_prompt, kernel flex"),
        ("shared_prompt", [{"sft/padded": 1.0}, {"policy/padded": 1.0}, {}], "padded, kernel sdpa"),
        ("packed", [{"policy/padded": 1.0}], "padded, kernel sdpa"),
        ("packed", [{}], "packed, kernel flex"),
    ],
)
def test_attention_is_that_of_the_last_step(
    tmp_path: Path, configured: str, rows: list[dict[str, float]], found: str
) -> None:
    lines = (json.dumps({"step": step, "stage": "rl", **row}) for step, row in enumerate(rows))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    config = load_config(["trainer.backend=nccl", "trainer.num_gpus=1", f"trainer.attention={configured}"])
    run: Any = SimpleNamespace(
        config=config,
        folder=tmp_path,
        evaluations={},
        dialogues={},
        scorers=SimpleNamespace(gates={}, checks={}),
        prepared=SimpleNamespace(dropped={}),
    )
    assert summarise_run(run, {}, {}, 1.0, [])["machine"]["attention"] == found


def test_figures_of_an_act_with_a_secret_name_stay(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "{}") as folder:
        write_summary(folder, {"stages": {"rl": {"exact_by_act": {"reset_password": 0.5}}}})
        assert read_summary(folder)["stages"]["rl"]["exact_by_act"] == {"reset_password": 0.5}
        folder.summary.write_text("[]")
        with pytest.raises(HamrError, match=r"summary\.json': is not a JSON object"):
            read_summary(folder)
