"""Typing errors and hostile files: one line, before anything is allocated or written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import annotated_types
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from hamr.config.benchmarks import EcsConfig, OlabenchConfig, PlansConfig, Tau2Config
from hamr.config.load import load_config, load_dumped
from hamr.config.pipeline import read_pipeline
from hamr.config.safe_yaml import MAX_VALUES, check_aliases, load_yaml
from hamr.config.sage import SageConfig
from hamr.config.schema import Config
from hamr.config.yaml_files import read_config
from hamr.data.tickets import read_mapping
from hamr.errors import BadInput
from hamr.procedures import load_scenario
from hamr.prompting.templates import PromptTemplate
from hamr.rewards.rules import load_rules


@pytest.mark.parametrize(
    "override",
    [
        "rollout.samples_per_prompt=1000000000",
        "rollout.samples_per_prompt=1",
        "experiment.steps=10000000000000000000000",
        "experiment.prompts_per_step=1000000000",
        "experiment.sft.steps=1000000000",
        "data.sage.train=100000000",
        "model.max_context=1000000000000",
        "cluster.num_cpus=1000000000",
        "cluster.object_store_mb=100000000000",
        "trainer.threads=1000000000",
        "pools.judge.batch_size=1000000000000",
        "pools.judge.max_ongoing_requests=100000000000000000000",
        "pools.judge.replicas=1000000000",
        f"experiment.seed={1 << 32}",
        "experiment.seed=-1",
        "experiment.name=../../x",
        "experiment.name=.hidden",
        "experiment.name=/etc/x",
        "experiment.name=''",
        f"experiment.name={'x' * 201}",
        f"experiment.name={'名' * 67}",
    ],
    ids=lambda override: override[:40],
)
def test_absurd_value_is_rejected_with_its_key(override: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_config(["experiment=smoke", "data=sage", override])
    assert refused.value.where == override.partition("=")[0]


def test_responses_of_a_step_have_a_common_limit() -> None:
    with pytest.raises(BadInput, match=r"prompts_per_step=300000 but rollout.samples_per_prompt=4; .* 1,000,000"):
        load_config(["experiment=smoke", "experiment.prompts_per_step=300000", "rollout.samples_per_prompt=4"])


def unbounded(kind: Any, key: str, marks: Sequence[object] = ()) -> list[str]:
    """Return the keys of all numbers below a type that have no upper bound."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return [name for key_, f in fields for name in unbounded(f.annotation, f"{key}.{key_}".lstrip("."), f.metadata)]
    if kind in (int, float):
        flat = [part for mark in marks for part in getattr(mark, "metadata", [mark])]
        return [] if any(isinstance(mark, annotated_types.Le | annotated_types.Lt) for mark in flat) else [key]
    if get_origin(kind) is Annotated:
        inner, *more = get_args(kind)
        return unbounded(inner, key, [*marks, *more])
    own = marks if get_origin(kind) in (Union, UnionType) else ()
    return [name for inner in get_args(kind) for name in unbounded(inner, key, own)]


@pytest.mark.parametrize("section", [Config, SageConfig, EcsConfig, OlabenchConfig, PlansConfig, Tau2Config])
def test_every_number_of_the_schema_has_an_upper_bound(section: type[BaseModel]) -> None:
    assert unbounded(section, "") == []


def test_names_in_any_language_are_accepted() -> None:
    for name in ("客服", "my run 2", "v1.2", "x" * 200):
        assert load_config(["experiment=smoke", f"experiment.name='{name}'"]).experiment.name == name


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
LOOP = "a: &a [*a]\n"


def load_own(path: Path) -> None:
    group = path.parent / "conf" / "experiment"
    group.mkdir(parents=True)
    path.rename(group / "own.yaml")
    load_config(["experiment=own"], config_dir=group.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "config folder": load_own,
    "config.yaml": load_dumped,
    "config.yaml of a report": read_config,
    "rules": lambda path: load_rules(str(path)),
    "prompt": lambda path: PromptTemplate.load(str(path)),
    "mapping": read_mapping,
    "scenario": load_scenario,
    "pipeline": read_pipeline,
}


UNREADABLE = (
    "a: 9999-99-99", f"a: {'9' * 5000}", "a: !!int x", "a: !!float x", "a: !!timestamp x", "a: !!bool x"
)  # fmt: skip


@pytest.mark.parametrize("text", [BOMB, LOOP, "[" * 2000, *UNREADABLE], ids=range(9))
@pytest.mark.parametrize("reader", READERS)
def test_a_file_beyond_bounds_is_one_line(tmp_path: Path, reader: str, text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as refused:
        READERS[reader](path)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_the_line_of_the_aliases_is_named() -> None:
    with pytest.raises(yaml.MarkedYAMLError) as refused:
        check_aliases(BOMB)
    assert refused.value.problem_mark is not None and refused.value.problem_mark.line > 2


nodes = st.recursive(
    st.integers(0, 9), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=2), inner)
)


@given(nodes, st.integers(0, 3))
def test_other_documents_are_read_unchanged(value: object, copies: int) -> None:
    """PyYAML writes an alias for every list and mapping that occurs again."""
    shared = [value] * copies
    assert load_yaml(yaml.safe_dump(shared)) == shared
    assert copies * 100 < MAX_VALUES
