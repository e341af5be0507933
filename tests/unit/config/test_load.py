"""Loading the configuration: supported overrides, and the message of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from hamr.config.cluster_security import check_cluster_address
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.config.pools import PoolConfig
from hamr.errors import BadInput, ConfigError


def complaint(*overrides: str, config_dir: Path | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides, config_dir)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# --- values and choices ------------------------------------------------------------------------


def test_value_absent_from_every_file_can_be_set() -> None:
    config = load_config(["rollout.top_p=0.9", "rewards.consistency.cascade.tau_a=0.5", "trainer.lora.rank=4"])
    assert config.rollout.top_p == 0.9
    assert config.rewards.consistency.cascade.tau_a == 0.5
    assert config.trainer.lora is not None
    assert config.trainer.lora.rank == 4


def test_command_line_overrides_values_and_choices_of_experiments() -> None:
    config = load_config(["rollout.max_new_tokens=9", "experiment=smoke", "model=smollm2"])
    assert config.rollout.max_new_tokens == 9
    assert config.model.path == "smollm2-135m"
    assert config.experiment.name == "smoke"


@pytest.mark.parametrize(
    ("override", "get", "value"),
    [
        ("trainer.betas=[0.8,0.95]", lambda c: c.trainer.betas, (0.8, 0.95)),
        ("trainer.learning_rate=3e-4", lambda c: c.trainer.learning_rate, 3e-4),
        ("algorithm.importance.cap=null", lambda c: c.algorithm.importance.cap, None),
        ("++experiment.seed=5", lambda c: c.experiment.seed, 5),
        ("+experiment.seed=5", lambda c: c.experiment.seed, 5),
        ("model.path=/a folder/with spaces", lambda c: c.model.path, "/a folder/with spaces"),
        ("model.path='a=b, (c)'", lambda c: c.model.path, "a=b, (c)"),
        ("logging={console: false}", lambda c: c.logging.console, False),
        ("experiment=null", lambda c: c.experiment.name, "run"),
        ("trainer=null", lambda c: c.trainer.zero_stage, 2),
        ("pools.third={role: judge, prompt: judge.en}", lambda c: c.pools["third"].role, "judge"),
    ],
)
def test_override_forms_are_supported(override: str, get, value: object) -> None:
    assert get(load_config([override])) == value


def test_loading_is_repeatable_and_clears_hydra() -> None:
    first = load_config(["experiment=smoke"])
    assert not GlobalHydra.instance().is_initialized()
    assert load_config(["experiment=smoke"]) == first


def test_hydra_state_of_the_caller_is_preserved(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        load_config(["experiment=smoke"])
        assert compose("config").mine == 1


# --- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.learning_rat=1", "trainer.learning_rat: unknown key; did you mean trainer.learning_rate?"),
        ("train.learning_rate=1", "train.learning_rate: unknown key; did you mean trainer.learning_rate?"),
        ("trainer.lr=1", "trainer.lr: unknown key; did you mean trainer.learning_rate?"),
        ("learning_rate=1", "learning_rate: unknown key; did you mean trainer.learning_rate?"),
        ("sed=1", "sed: unknown key; did you mean experiment.seed?"),
        ("seed=1", "seed: unknown key; did you mean experiment.seed?"),
        ("train=1", "train: unknown key; did you mean trainer?"),
        ("pools.judge.replica=2", "pools.judge.replica: unknown key; did you mean pools.judge.replicas?"),
        ("rewards.consistency.cascade.taua=1", "did you mean rewards.consistency.cascade.tau_a?"),
        ("trainer.lora.ranks=2", "trainer.lora.ranks: unknown key; did you mean trainer.lora.rank?"),
        ("checkpoint.keep=3", "checkpoint.keep: unknown key; did you mean experiment.checkpoint.keep?"),
        ("router.qqq=1", "router.qqq: unknown key; router has num_cpus, deadline_s"),
    ],
)
def test_unknown_key_suggests_the_nearest(override: str, says: str) -> None:
    assert says in complaint(override)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algorithm.name=ppo", "algorithm.name: 'ppo': must be 'dapo', 'grpo', 'dr_grpo'"),
        ("trainer.learning_rate=-1", "trainer.learning_rate: -1: must be greater than 0"),
        ("trainer.learning_rate=fast", "trainer.learning_rate: 'fast': must be a valid number"),
        ("trainer.zero_stage=4", "trainer.zero_stage: 4: must be less than or equal to 3"),
        ("trainer.betas=[0.9,1.0]", "trainer.betas.1: 1.0: must be less than 1"),
        ("trainer.lora={target_modules: [q_proj, lm_head]}", "target_modules has 'lm_head', whose adapter"),
        ("trainer.lora={target_modules: [model.embed_tokens]}", "target_modules has 'model.embed_tokens', whose"),
        ("data.sage=3", "data.sage: 3: must be a section of keys"),
        ("pools.extra.model=x", "pools.extra.role: required, but not set; set pools.extra.role=..."),
        ("pools.juge.type=openai", "not set; did you mean pools.judge? Otherwise set pools.juge.role=..."),
        ("model.path=???", "model.path: required"),
        ("trainer.learning_rate=1,2", "only one value is accepted"),
        ("model.path=(x", "put it in quotes: model.path="),
        ("rollout.episode.kwargs={city: Zürich}", 'put the texts in it in quotes, such as {city: "Zürich"}'),
        ("model._target_=os.system", "class paths are not accepted"),
        ("model.path=${trainer.dtype}", "interpolations are not accepted"),
        ("hydra.run.dir=x", "experiment.run_dir"),
        ("quickstart", "did you mean experiment=quickstart?"),
        ("nonsense", "not a key=value"),
        ("=1", "not a key=value"),
        ("--verbose", "unknown option; write overrides as key=value. The options are --config-dir DIR, for train,"),
        ("--verbose", "--cfg job and --info, for train and sft --multirun"),
    ],
)
def test_invalid_value_names_key_value_and_remedy(override: str, says: str) -> None:
    assert says in complaint(override)


@pytest.mark.parametrize(
    ("override", "first"),
    [
        ("trainer=zer3", "zero3"),
        ("experiment=quikstart", "quickstart"),
        ("rewards=hybird", "hybrid"),
        ("model=3", "qwen3_4b"),
    ],
)
def test_unknown_choice_lists_options_nearest_first(override: str, first: str) -> None:
    group, _, value = override.partition("=")
    assert complaint(override).startswith(f"{group}: '{value}': no such choice; there are (nearest first): {first}")


@pytest.mark.parametrize("start", ["judge", "nobody"])
def test_start_from_requires_a_scorer_trained_from_its_own_model(start: str) -> None:
    message = complaint("pools=cpu_small", f"pools.judge.finetune.start_from={start}")
    assert f"pools.judge.finetune.start_from='{start}'" in message
    assert "use one of ['reranker'] or null" in message


def test_contradictions_name_both_values_and_the_remedy() -> None:
    message = complaint("rewards.consistency.cascade.tau_a=0.99")
    assert "rewards.consistency.cascade" in message
    assert "tau_a=0.99" in message
    assert "tau_b=0.98" in message
    assert "rollout.max_new_tokens=2048" in complaint("rollout.max_new_tokens=2048")
    assert "use transfer='shared_memory'" in complaint("rollout.transfer=nccl")
    assert "set trainer.lora" in complaint("rollout.transfer=adapter")
    assert "rank=300 is above 256" in complaint("rollout.transfer=adapter", "trainer.lora={rank: 300}")
    assert "samples=4 at temperature=0" in complaint("experiment.evaluation.samples=4")
    assert "set normalize_std=true" in complaint("rewards.normalise=gdpo", "algorithm.normalize_std=false")
    assert "set reference=false" in complaint("rewards.normalise=gdpo", "algorithm.all_wrong.reference=true")
    assert "set advantage='group'" in complaint("rewards.normalise=gdpo", "algorithm.advantage=maxrl")
    assert "set objective='clip'" in complaint("algorithm=gspo", "algorithm.dual_clip=3")
    assert "dual_clip=1.1 is not above 1 + algorithm.clip_high=1.28" in complaint("algorithm.dual_clip=1.1")
    assert "replaces it" in complaint("algorithm=gspo", "algorithm.loss.path=my.py:f")
    changing = ("top_k: 20", "min_p: 0.02", "min_tokens: 4", "bad_words: [sorry]", "allowed_token_ids: [1]")
    changing += ("repetition_penalty: 1.1", "presence_penalty: -0.5", "logit_bias: {7: 1.0}", "extra_args: {x: 1}")
    for narrowed in ("rollout.top_p=0.9", *(f"rollout.sampling_extra={{{one}, ignore_eos: true}}" for one in changing)):
        assert "level='geometric'" in complaint("algorithm.importance.level=sequence", narrowed)
    same = "top_k: -1, repetition_penalty: 1.0, min_tokens: 0, bad_words: null, ignore_eos: true"
    load_config(["algorithm.importance.level=sequence", f"rollout.sampling_extra={{{same}}}"])
    assert "set [low, high] with low < high" in complaint("algorithm.importance.mask_outside=[5,0.5]")
    surplus = ("algorithm.dynamic_sampling.oversample=1.7", "algorithm.dynamic_sampling.surplus=keep")
    assert "set oversample=1" in complaint(*surplus, "experiment.asynchrony.max_policy_age=1")
    assert "raise it, e.g. to 1.7" in complaint(surplus[1])
    falling = ("experiment.sft.schedule=cosine", "experiment.sft.learning_rate=1e-5", "trainer.min_learning_rate=1e-4")
    assert "experiment.sft.learning_rate=1e-05" in complaint(*falling, "experiment.sft.steps=1")
    assert load_config([*falling, "experiment.sft.steps=0"]), "no warm-up, no rate of its own"


def test_judged_reward_requires_a_generating_pool() -> None:
    message = complaint("rewards.risk.weight=1", "rewards.risk.pool=safety")
    assert "rewards.risk.pool='safety' but pools has only ['judge', 'reranker']" in message
    assert "role 'judge' or 'grader'" in complaint("rewards.policy.weight=1", "rewards.policy.pool=reranker")
    assert "compares two texts and cannot generate text" in complaint("pools=compact", "rewards.policy.weight=1")
    config = load_config(["rewards.risk.weight=1", "rewards.risk.pool=safety", "pools.safety.role=grader"])
    assert config.rewards.judges.keys() == {"risk"}
    assert load_config(["rewards.risk.pool=safety"]).rewards.judges == {}, "nobody is asked without a weight"


def test_only_a_grader_has_no_prompt() -> None:
    assert "role='grader' but prompt='judge_short.en'" in complaint("pools.judge.role=grader")
    assert "role='judge' but prompt=''" in complaint("pools.extra.role=judge")
    assert "group_wait_s=200" in complaint("router.group_wait_s=200")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["pools.judge.hedge={}"], ["pools.judge", "replicas=1 and a hedge section", "raise replicas or remove"]),
        (
            ["pools.judge.hedge={}", "pools.judge.replicas=2", "pools.judge.autoscaling={max_replicas: 1}"],
            ["autoscaling.max_replicas=1 and a hedge section"],
        ),
        (
            ["pools.judge.replicas=2", "pools.judge.hedge={floor_s: 200}"],
            ["hedge.floor_s=200 is not below deadline_s=120"],
        ),
        (
            ["pools.judge.replicas=2", "pools.judge.hedge={burst: 4}"],
            ["hedge.burst=4 is below batch_size=16"],
        ),
        (
            ["pools.judge.replicas=2", "pools.judge.hedge={min_count: 300}"],
            ["min_count=300 is above window=200"],
        ),
        (["experiment.unscored.first_s=500"], ["first_s=500 is above longest_s=120"]),
        (
            ["rewards=soft_judge", "rewards.consistency.fallback=reranker"],
            ["mode='soft_judge' but fallback='reranker'"],
        ),
        (
            ["rewards.consistency.fallback=wait", "pools.judge.deadline_s=180"],
            ["pools.judge.deadline_s=180", "router.deadline_s=180"],
        ),
        (
            ["rewards.dialogue.weight=1", "rewards.fallback=wait", "pools.judge.deadline_s=200"],
            ["rewards.fallback='wait' but pools.judge.deadline_s=200", "router.deadline_s=180"],
        ),
        (["pools.judge.max_queued_requests=0"], ["pools.judge", "would reject every request"]),
        (["pools.judge.breaker.failure_frac=0"], ["pools.judge.breaker.failure_frac: 0: must be greater than 0"]),
        (["pools.judge.hedge.quantil=0.5"], ["quantile"]),
    ],
)
def test_contradictory_fault_settings_are_rejected(overrides: list[str], says: list[str]) -> None:
    message = complaint(*overrides)
    for part in says:
        assert part in message


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["data.sft=b.jsonl"], "type='sage' but sft='b.jsonl'"),
        (["pools.a--b={role: judge, prompt: judge.en}"], "has no '--'"),
        (["scorers.on_alarm=refit"], "scorers.check_every=0, so that the scorers are never checked"),
        (["rewards.consistency.mode=soft_judge", "rewards.consistency.audit_frac=0.1"], "which has no trust interval"),
        (["trainer.lora={target_modules: []}"], "must have 1 or more entries"),
        (
            ["env=endpoint", "env.command=x", "rewards.consistency.weight=0", "rewards.length.weight=1"],
            "set rewards.length.reference_length",
        ),
        (["pools=compact", "pools.judge.top_p=0.5"], "it writes no text: remove top_p"),
        (
            [
                "pools=compact", "pools.judge.type=vllm", "pools.judge.prompt=judge.en",
                "pools.judge.model=smollm2-135m", "pools.judge.finetune.start_from=reranker",
            ],
            "start from a pool of the same type",
        ),
        (["rollout.temperature=2.5"], "must be less than or equal to 2"),
        (["rollout.temperature=0.001"], "must be greater than or equal to 0.01"),
        (["experiment.evaluation.temperature=3"], "must be less than or equal to 2"),
        (["cluster.object_store_mb=64"], "must be greater than or equal to 75"),
        (["pools.judge.max_replicas_per_node=101"], "must be less than or equal to 100"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(["experiment=smoke", *overrides])
    assert says in str(raised.value)


def test_fault_tolerance_defaults_are_off_or_bounded() -> None:
    config = load_config(["pools.judge.breaker=null", "experiment.unscored.max_frac=null"])
    assert config.pools["judge"].breaker is None
    assert config.experiment.unscored.max_frac is None
    assert (config.pools["reranker"].hedge, config.rewards.consistency.fallback) == (None, "exclude")
    hedged = load_config(["pools.judge.replicas=2", "pools.judge.hedge.budget_frac=0.1"]).pools["judge"].hedge
    assert hedged is not None
    assert (hedged.budget_frac, hedged.quantile) == (0.1, 0.95)


def test_several_mistakes_are_reported_with_their_count() -> None:
    assert "(and 1 more)" in complaint("trainer.ranks=0", "rollout.workers=0")


# --- a user's own folder -----------------------------------------------------------------------


def test_own_folder_adds_and_overrides_choices(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: tiny\nexperiment: {name: mine}\ntrainer: {ranks: 3}\n"
    )
    (tmp_path / "model" / "tiny.yaml").write_text("path: /my/tiny\n")
    for args in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"]):
        config = load_config([*args, "experiment=mine"])
        assert (config.experiment.name, config.trainer.ranks, config.model.path) == ("mine", 3, "/my/tiny")
    assert load_config(["experiment=mine"], config_dir=tmp_path).model.path == "/my/tiny"
    assert "mine" not in complaint("experiment=min")


def test_own_folder_must_exist(tmp_path: Path) -> None:
    assert "no such folder" in complaint("--config-dir", str(tmp_path / "none"))
    assert "no such folder" in complaint(config_dir=tmp_path / "none")
    assert "--config-dir: '': no such folder" in complaint("--config-dir")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainer:\n  ranks: 1\n  learning_rat: 3\n", "mine.yaml:4 "),
        ("trainer: {ranks: 0}\n", "mine.yaml:2"),
        ("trainer:\n  ranks: [1\n", "mine.yaml:"),
        ("trainer: 1\ntrainer: 2\n", "mine.yaml:3"),
        ("model: {path: '${trainer.dtype}'}\n", "interpolations are not accepted"),
        ("model: {_target_: os.system}\n", "class paths are not accepted"),
        ("hydra: {run: {dir: x}}\n", "hydra: Hydra's own settings are not used; remove them"),
        ("model: {path: 1}\nexperiment: {hydra: 1}\n", "experiment.hydra: unknown key"),
    ],
)
def test_mistake_in_a_file_names_file_and_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\n" + text)
    assert says.strip() in complaint("experiment=mine", config_dir=tmp_path)


def test_command_line_key_is_not_attributed_to_a_file() -> None:
    assert "dapo.yaml" not in complaint("algorithm.name=ppo")


def test_place_of_a_section_fault_is_that_of_its_key(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nrewards: {length: {weight: 0.5}}\n")
    reserved = "rewards.custom.rules.path=f.py:f"
    assert complaint("experiment=mine", reserved, config_dir=tmp_path).endswith("rename your reward (command line)")
    file = tmp_path / "experiment" / "theirs.yaml"
    file.write_text("# @package _global_\nrewards: {custom: {rules: {path: f.py:f}}}\n")
    from_file = complaint("experiment=theirs", "rewards.length.weight=0.5", config_dir=tmp_path)
    assert from_file.endswith(f"rename your reward ({file}:2)")


def test_file_with_an_unknown_option_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /trainer: zer2\n")
    assert "trainer: 'zer2': no such choice; there are (nearest first): zero2" in complaint(
        "experiment=mine", config_dir=tmp_path
    )


# --- data=<path> -------------------------------------------------------------------------------


def test_data_may_be_a_folder_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "it's mine, (v=1)"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("")
    data = load_config([f"data={folder}", "experiment=quickstart", "data.max_eval=3"]).data
    assert (data.type, data.train, data.test) == ("jsonl", str(folder / "train.jsonl"), str(folder / "test.jsonl"))
    assert (data.validation, data.max_eval) == (None, 3)
    one = load_config([f"data={folder / 'test.jsonl'}", "data.validation=v.jsonl"]).data
    assert (one.train, one.validation, one.test) == (str(folder / "test.jsonl"), "v.jsonl", None)
    monkeypatch.chdir(tmp_path)
    assert load_config([f"data={folder.name}"]).data.train == str(folder / "train.jsonl")


def test_env_may_be_a_class_or_function_of_the_users_own() -> None:
    for path in ("my.py:Parcels", "package.module:run"):
        config = load_config(["experiment=smoke", f"env={path}"])
        assert config.rollout.episode is not None and config.rollout.episode.path == path and config.holds_dialogues
    assert "nearest first" in complaint("env=sagee")
    assert complaint("env=my.py") == "env: 'my.py': names no class; write env=my.py:CLASS, or my.py:FUNCTION"
    config = load_config(["experiment=smoke", "env=my.py:Parcels", 'rollout.episode.kwargs={city: "Zürich"}'])
    assert config.rollout.episode is not None and config.rollout.episode.kwargs == {"city": "Zürich"}


def test_levels_need_customers_of_a_scenario() -> None:
    assert load_config(["experiment=dialogues", "env.levels=[weak,strong]"]).env.levels == ("weak", "strong")
    assert "but env.type='decision', whose customers have no levels" in complaint("env.levels=[weak]")


def test_invalid_data_paths_are_rejected(tmp_path: Path) -> None:
    assert "no train.jsonl" in complaint(f"data={tmp_path}")
    assert "no such file or folder" in complaint(f"data={tmp_path}/none.jsonl")
    assert "nearest first" in complaint("data=sag")
    assert "data.train" in complaint("data.type=jsonl")


# --- dumps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", ["smoke", "quickstart", "paper_hrm"])
def test_dump_survives_the_round_trip(experiment: str, tmp_path: Path) -> None:
    config = load_config([f"experiment={experiment}", "trainer.lora.rank=4", "trainer.learning_rate=1e-7"])
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert load_dumped(file) == config


def test_a_dump_writes_every_default() -> None:
    dumped = yaml.safe_load(dump_config(load_config()))
    assert dumped["trainer"]["betas"] == [0.9, 0.999]
    assert dumped["pools"]["judge"]["attempts"] == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("trainer: [", "not valid YAML"),
        ("- 1\n", "contains no configuration"),
        ("data: {type: sage}\ntrainer: {ranks: none}\n", "trainer.ranks"),
    ],
)
def test_damaged_dump_is_reported_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        load_dumped(file)
    assert says in str(caught.value)


def test_a_dump_with_keys_of_another_version_is_read_without_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(["experiment=smoke"])
    raw = yaml.safe_load(dump_config(config))
    raw["trainer"]["of_another_version"] = 3
    raw["logging"]["api_key"] = "sk-not-for-a-log"
    raw["rewards"]["consistency"]["budget"]["older"] = {"deep": 1}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(raw))
    assert load_dumped(file) == config
    assert "trainer.of_another_version=3" in caplog.text
    assert "rewards.consistency.budget.older" in caplog.text
    assert "logging.api_key" in caplog.text
    assert "sk-not-for-a-log" not in caplog.text


def test_an_unknown_key_among_the_overrides_of_a_dump_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(load_config(["experiment=smoke"])))
    with pytest.raises(ConfigError, match=r"did you mean trainer\.ranks\?"):
        load_dumped(file, ["trainer.rank=1"])


def test_missing_dump_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_dumped(tmp_path / "config.yaml")


# --- secrets -----------------------------------------------------------------------------------

OPENAI = ["pools.judge.type=openai", "pools.judge.model=m"]


@pytest.mark.parametrize(
    "override",
    [
        "pools.judge.endpoint=http://me:hunter2@host/v1",
        "pools.judge.endpoint='http://host/v1?api_key=hunter2'",
    ],
)
def test_endpoint_credentials_are_rejected_without_showing_them(override: str) -> None:
    message = complaint(*OPENAI, override)
    assert "hunter2" not in message
    assert "api_key_env" in message


def test_api_key_in_place_of_its_variable_is_rejected_unshown() -> None:
    message = complaint(*OPENAI, "pools.judge.endpoint=http://host/v1", "pools.judge.api_key_env=sk-hunter2")
    assert "hunter2" not in message
    assert "environment variable" in message


def test_a_contradiction_shows_no_credentials() -> None:
    assert "hunter2" not in complaint("pools.judge.endpoint=http://me:hunter2@host/v1")


def test_dump_rejects_secrets() -> None:
    config = load_config()
    leaky = PoolConfig(role="judge", prompt="judge.en", type="openai", endpoint="http://me:hunter2@host/v1")
    with pytest.raises(ConfigError, match="credentials"):
        dump_config(config.model_copy(update={"pools": {"judge": leaky}}))


def test_job_without_rewards_is_rejected() -> None:
    off = ["experiment=smoke", "rewards.consistency.weight=0", "rewards.format.weight=0", "rewards.length.weight=0",
           "rewards.rules.weight=0"]  # fmt: skip
    with pytest.raises(ConfigError, match="give at least one a weight above 0") as refused:
        load_config(off)
    assert "\n" not in str(refused.value)
    for one in ("rewards.format.weight=0.2", "rewards.dialogue.weight=1"):
        assert load_config([*off, one]).rewards.consistency.weight == 0


def test_contradictory_response_formats_are_rejected() -> None:
    message = complaint("model.response_format=hybrid", "experiment.sft.steps=3")
    assert "model.response_format='hybrid' but experiment.sft.steps=3" in message and "hamr sft" in message
    message = complaint("model.response_format=hybrid", "algorithm.all_wrong.reference=true")
    assert "all_wrong.reference=true but model.response_format='hybrid'" in message and "set reference=false" in message
    message = complaint("model.response_format=think_answer", "experiment.evaluation.stop_at_answer=true")
    assert "stop_at_answer=true but model.response_format='think_answer'" in message


def test_model_of_an_endpoint_is_not_fine_tuned() -> None:
    there = ["pools=cpu_small", *OPENAI, "pools.judge.endpoint=http://127.0.0.1:9/v1"]
    assert load_config(there).pools["judge"].finetune is None
    moved = [setting.replace("judge", "reranker") for setting in there]
    assert "pools.judge.finetune.start_from='reranker'" in complaint(*moved)


def test_bundled_model_behind_an_endpoint_is_rejected() -> None:
    there = ["pools=tiny", "pools.judge.type=openai", "pools.judge.endpoint=http://127.0.0.1:9/v1"]
    message = complaint(*there)
    assert "pools.judge.type='openai' but pools.judge.model='tiny', a bundled model" in message
    assert "set pools.judge.model=NAME" in message and "\n" not in message
    for name in ("my-org/judge", "/models/judge"):
        assert load_config([*there, f"pools.judge.model={name}"]).pools["judge"].model == name


def test_judge_of_an_endpoint_has_tokens_for_its_reasoning() -> None:
    there = ["experiment=own_data", "data.train=t.jsonl", *OPENAI, "pools.judge.endpoint=http://127.0.0.1:9/v1"]
    assert load_config(there).pools["judge"].thinking_tokens == 500
    assert load_config([*there, "pools.judge.thinking_tokens=7"]).pools["judge"].thinking_tokens == 7


def test_replicas_must_be_within_autoscaling_bounds() -> None:
    scaling = ["pools=paper", "pools.judge.autoscaling={min_replicas: 2, max_replicas: 4}"]
    assert "replicas=5 is above autoscaling.max_replicas=4" in complaint(*scaling, "pools.judge.replicas=5")
    firsts = [load_config([*scaling, f"pools.judge.replicas={n}"]).pools["judge"].first_replicas for n in (1, 2, 3)]
    assert firsts == [2, 2, 3]
    assert load_config(["pools=paper", "pools.reranker.batch_size=2"]).pools["reranker"].places == 8 * 16 * 2


def test_rank_with_several_gpus_is_rejected() -> None:
    message = complaint("trainer.backend=nccl", "trainer.num_gpus=2")
    assert "num_gpus=2 but ranks=1; a rank uses one GPU: set num_gpus=1" in message


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_number_fields_reject_infinity_and_nan(value: str) -> None:
    assert "trainer.learning_rate" in complaint(f"trainer.learning_rate=.{value}")


@pytest.mark.parametrize("key", ["cluster.address", "cluster.dashboard"])
def test_address_with_an_unclosed_bracket_is_bad_input(tmp_path: Path, key: str) -> None:
    address = load_config(["experiment=smoke", f"{key}='http://[::1'"]).cluster
    with pytest.raises(BadInput):
        check_cluster_address(
            getattr(address, key.partition(".")[2]), allow_unauthenticated=False, environ={"HOME": str(tmp_path)}
        )


def test_steps_follow_from_episodes_unless_set(tmp_path: Path) -> None:
    """A run's config.yaml has the steps that it began with; a submitted job has not read the data."""
    quick = ["experiment=quickstart", "experiment.episodes=2", "experiment.prompts_per_step=12"]
    kept = load_config(quick).experiment
    assert (kept.is_open, kept.with_steps(100).steps) == (False, kept.steps)
    config = load_config([*quick, "experiment.steps=null"])
    assert config.experiment.with_steps(100).steps == 17
    many = config.experiment.model_copy(update={"episodes": 1e9})
    with pytest.raises(ConfigError, match=r"experiment.episodes: '1e\+09': that is 8.33e\+09 steps on 100 samples"):
        many.with_steps(100)
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert yaml.safe_load(file.read_text())["experiment"]["steps"] is None
    assert load_dumped(file) == config
    begun = config.model_copy(update={"experiment": config.experiment.with_steps(100)})
    file.write_text(dump_config(begun))
    assert load_dumped(file).experiment.with_steps(1000).steps == 17


def test_schedule_of_an_experiment_without_one_is_rejected() -> None:
    with pytest.raises(ConfigError, match="schedule: 'steps': the experiment has no such group; remove it"):
        load_config(["experiment=quickstart", "schedule=steps"])


def test_gpus_get_more_time_to_start() -> None:
    gpu = ["experiment=smoke", "pools.judge.engine.num_gpus=1"]
    assert load_config(["experiment=smoke"]).cluster.start_timeout_s == 300
    assert load_config(gpu).cluster.start_timeout_s == 1800
    assert load_config([*gpu, "cluster.start_timeout_s=60"]).cluster.start_timeout_s == 60
