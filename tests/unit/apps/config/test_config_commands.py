"""`hamr config show`, `hamr config explain`, `hamr completion`, and Hydra's flags that mean the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hamr import cli
from hamr.apps.config.completion import completion_script, completion_words
from hamr.config.load import dump_config, load_config

OVERRIDES = ("experiment=quickstart", "trainer.learning_rate=1e-4")


def output(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert cli.main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


def test_show_prints_the_resolved_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "config", "show", *OVERRIDES)
    assert yaml.safe_load("\n".join(lines)) == yaml.safe_load(dump_config(load_config(OVERRIDES)))


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("  learning_rate: 0.0001", "command line"),
        ("  prompts_per_step: 18", "conf/experiment/quickstart.yaml:"),
        ("  run_dir: null", "default"),
    ],
)
def test_show_names_the_origin_of_a_value(capsys: pytest.CaptureFixture[str], line: str, origin: str) -> None:
    [found] = [text for text in output(capsys, "config", "show", *OVERRIDES) if text.startswith(f"{line} ")]
    assert found.partition("# ")[2].startswith(origin)


def test_show_names_files_of_the_users_own_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer/mine.yaml").write_text("learning_rate: 0.5\n")
    lines = output(capsys, "config", "show", "trainer=mine", "--config-dir", str(tmp_path))
    assert any(line.endswith(f"# {tmp_path}/trainer/mine.yaml:1") for line in lines)


def test_info_prints_the_chosen_files_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "config", "show", "experiment=quickstart", "--info")
    assert lines[-1] == "conf/experiment/quickstart.yaml" and "conf/pools/compact.yaml" in lines


@pytest.mark.parametrize(("flags", "shown"), [(("--cfg", "job"), ()), (("--info",), ("--info",))])
def test_flags_of_hydra_show_the_configuration(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    assert output(capsys, "train", *OVERRIDES, *flags) == output(capsys, "config", "show", *OVERRIDES, *shown)


def test_unsupported_cfg_value_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "experiment=smoke", "--cfg", "all"]) == 2
    assert capsys.readouterr().err == "hamr: --cfg: 'all': only `--cfg job` is known\n"


def test_explain_prints_meaning_value_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "config", "explain", "experiment.eval_every", "experiment=quickstart")
    assert lines[0] == "experiment.eval_every" and "held-out split" in lines[1]
    assert lines[2:4] == ["  type     integer", "  default  0"]
    assert lines[4].startswith("  value    40  (conf/experiment/quickstart.yaml:")


def test_explain_takes_a_section_and_names_of_pools(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "config", "explain", "pools.judge.engine")
    assert "pools.judge.engine.num_gpus" in lines and "pools.judge.replicas" not in lines


def test_explain_takes_names_that_are_not_configured(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "config", "explain", "rewards.custom.politeness")
    assert {"rewards.custom.politeness.path", "rewards.custom.politeness.weight"} <= set(lines)
    assert output(capsys, "config", "explain", "pools.mine.endpoint")[0] == "pools.mine.endpoint"


def test_explain_names_the_nearest_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "explain", "trainer.learning_rat"]) == 2
    assert capsys.readouterr().err == "hamr: trainer.learning_rat: unknown key; did you mean trainer.learning_rate?\n"


def complete(line: str) -> set[str]:
    """Return the completions of bash after `line`."""
    script = f'{completion_script("bash")}\nCOMP_LINE="{line}" COMP_POINT={len(line)}\n_hamr 2>/dev/null'
    script += '\nprintf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hamr tr", {"train"}),
        ("hamr train experiment=sm", {"smoke", "smollm2"}),
        ("hamr train trainer.learning_r", {"trainer.learning_rate="}),
    ],
)
def test_bash_completes(line: str, offered: set[str]) -> None:
    assert offered <= complete(line)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_valid_syntax(shell: str, tmp_path: Path) -> None:
    script = completion_script(shell)
    assert all(word in script for word in ("calibrate", "experiment=quickstart", "pools.judge.replicas="))
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
def test_first_word_is_completed_by_zsh(tmp_path: Path) -> None:
    """zsh runs a file of fpath in place of the function until it has defined it."""
    (tmp_path / "_hamr").write_text(completion_script("zsh"))
    shell = 'fpath=($0); autoload -Uz _hamr; compadd() { print -l -- "$@" }; _files() { }; _hamr'
    done = subprocess.run(["zsh", "-fc", shell, str(tmp_path)], capture_output=True, text=True, check=True)
    assert {"train", "trainer.learning_rate="} <= set(done.stdout.split())


def test_every_command_can_be_completed() -> None:
    assert {"train", "config", "completion", "benchmark=sage", "--multirun"} <= set(completion_words())
