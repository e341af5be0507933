"""verl 0.9: its own reward managers and configuration with hamr's functions. `make test-trainers`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

verl = pytest.importorskip("verl")

from hamr.adapters import verl as adapter  # noqa: E402
from tests.trainers.scorer import SAMPLE, Scorer  # noqa: E402


class Data:
    """One response, as the managers read it from a DataProto."""

    def __init__(self, text: str) -> None:
        torch = pytest.importorskip("torch")
        self.batch = {"responses": torch.tensor([1, 2]), "attention_mask": torch.tensor([1, 1, 1])}
        truth = {"ground_truth": SAMPLE}
        self.non_tensor_batch = {"data_source": "x", "reward_model": truth, "extra_info": {}, "text": text}

    def __getitem__(self, index: int | slice) -> Data:
        return self


async def run_single(manager: str, text: str, url: str, **changes: Any) -> float:
    from omegaconf import OmegaConf
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.reward import get_custom_reward_fn

    function = {"path": "pkg://hamr.adapters.verl", "name": "compute_score_async"}
    options = {"url": url, "asks": 1, **changes.pop("options", {})}
    config = OmegaConf.create({"reward": {"custom_reward_function": {**function, "reward_kwargs": options}, **changes}})
    tokenizer = SimpleNamespace(decode=lambda *_, **__: text)
    kind = get_reward_manager_cls(manager)
    kind._class_initialized = False
    kind.init_class(config, tokenizer)
    return (await kind(config, tokenizer, get_custom_reward_fn(config)).run_single(Data(text)))["reward_score"]


@pytest.mark.parametrize("manager", ["naive", "rate_limited"])
async def test_managers_return_hamr_s_reward_and_refuse_a_missing_one(manager: str) -> None:
    with Scorer() as scorer:
        assert await run_single(manager, "sevenxx", scorer.url) == pytest.approx(0.7)
        with pytest.raises(adapter.RewardRefused, match="stuck"):
            await run_single(manager, "hang", scorer.url)
        with pytest.raises(adapter.RewardRefused, match="TypeError"):
            await run_single(manager, "hang", scorer.url, options={"asks": "3x"})


async def test_timeout_of_the_rate_limited_manager_is_no_zero() -> None:
    with Scorer(answers=False) as scorer, pytest.raises(adapter.RewardRefused, match=r"with \+reward\.timeout="):
        await run_single("rate_limited", "sevenxx", scorer.url, timeout=0.05)


def test_documented_flags_exist() -> None:
    from hydra import compose, initialize_config_dir

    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "other-trainers.md").read_text()
    flags = [
        "reward.custom_reward_function.path=pkg://hamr.adapters.verl",
        "reward.custom_reward_function.name=compute_score_async",
        "+reward.custom_reward_function.reward_kwargs.url=http://host:8711",
        "+reward.timeout=600",
    ]
    assert all(flag in page for flag in flags)
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", flags)
    assert config.reward.custom_reward_function.reward_kwargs.url == "http://host:8711"
