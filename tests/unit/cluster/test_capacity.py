"""Pre-flight check of the cluster's capacity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.cluster.placement import check_capacity
from hamr.cluster.resource_requests import demands
from hamr.cluster.session import local_cpus
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.errors import CapacityError
from hamr.pools.client import app_name, split_app_name


def config(**sections: object) -> Config:
    """Trainer 1 x 0.5, rollout 1 x 0.5, router 0.1 and two pools of 1 x 0.5: 2.1 CPUs by default."""
    return Config.model_validate({"data": {"type": "sage"}} | sections)


def pools(**judge: object) -> dict[str, object]:
    return {
        "reranker": {"role": "reranker", "prompt": "reranker.en"},
        "judge": {"role": "judge", "prompt": "judge.en"} | judge,
    }


def test_exact_fit_is_accepted() -> None:
    check_capacity(demands(config()), {"CPU": 2.1})


def test_smoke_fits_two_cpus_with_another_replica() -> None:
    smoke = load_config(["experiment=smoke", "pools.reranker.replicas=2"])
    check_capacity(demands(smoke), {"CPU": 2.0})


def test_slightly_too_little_is_rejected() -> None:
    with pytest.raises(CapacityError, match=r"2\.1 that the run requests, but the cluster has 2"):
        check_capacity(demands(config()), {"CPU": 2.0})


def test_the_largest_consumer_is_named_with_the_count_that_fits() -> None:
    """12 judges take 6 of 7.6 CPUs; the others take 1.6, so 4 CPUs leave room for 2.4 / 0.5 = 4 judges."""
    with pytest.raises(CapacityError) as refused:
        check_capacity(demands(config(pools=pools(replicas=12))), {"CPU": 4.0})
    assert refused.value.where == "pools.judge.replicas"
    assert refused.value.value == 12
    assert "12 x 0.5 CPU of the 7.6" in str(refused.value)
    assert "lower it to 4 or less, or raise cluster.num_cpus to 7.6" in str(refused.value)
    assert refused.value.exit_code == 2
    check_capacity(demands(config(pools=pools(replicas=4))), {"CPU": 4.0})


def test_no_count_is_suggested_if_not_even_one_fits() -> None:
    with pytest.raises(CapacityError, match="lower it and the run.s other requests"):
        check_capacity(demands(config(trainer={"num_cpus": 4.0})), {"CPU": 1.0})


def test_gpus_are_counted_separately() -> None:
    judge = pools(engine={"num_gpus": 2, "tensor_parallel_size": 2, "num_cpus": 0}, replicas=3)
    with pytest.raises(CapacityError, match=r"pools\.judge\.replicas: 3: 3 x 2 GPU of the 6"):
        check_capacity(demands(config(pools=judge)), {"CPU": 64.0, "GPU": 4.0})
    with pytest.raises(CapacityError, match="the cluster has 0"):
        check_capacity(demands(config(pools=judge)), {"CPU": 64.0})


@pytest.mark.parametrize(("replicas", "key", "count"), [(1, "autoscaling.min_replicas", 2), (7, "replicas", 7)])
def test_autoscaled_pool_counts_its_initial_replicas(replicas: int, key: str, count: int) -> None:
    scaled = config(pools=pools(replicas=replicas, autoscaling={"min_replicas": 2, "max_replicas": 50}))
    [judge] = [d for d in demands(scaled) if "judge" in d.key]
    assert (judge.key, judge.count) == (f"pools.judge.{key}", count)


def test_a_pool_behind_an_endpoint_needs_no_engine() -> None:
    remote = config(pools=pools(type="openai", model="m", endpoint="http://localhost:1/v1", engine={"num_gpus": 1}))
    check_capacity(demands(remote), {"CPU": 2.1})


@given(
    replicas=st.integers(1, 40),
    ranks=st.integers(1, 8),
    workers=st.integers(1, 8),
    cpus=st.floats(0.1, 4.0),
    available=st.floats(0.5, 64.0),
)
def test_request_is_rejected_iff_it_exceeds_the_capacity(
    replicas: int, ranks: int, workers: int, cpus: float, available: float
) -> None:
    asked = config(
        pools=pools(replicas=replicas, engine={"num_cpus": cpus}),
        trainer={"ranks": ranks},
        rollout={"workers": workers},
    )
    need = replicas * cpus + 0.5 + 0.5 * ranks + 0.5 * workers + 0.1
    if need > available + 1e-6:
        with pytest.raises(CapacityError):
            check_capacity(demands(asked), {"CPU": available})
    elif need < available - 1e-6:
        check_capacity(demands(asked), {"CPU": available})


def test_local_ray_has_eight_logical_cpus_on_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert local_cpus(config().cluster) == 8
    monkeypatch.setattr("os.cpu_count", lambda: 96)
    assert local_cpus(config().cluster) == 96
    assert local_cpus(config(cluster={"num_cpus": 3}).cluster) == 3


@given(run=st.text(min_size=1), pool=st.from_regex(r"[a-z][a-z0-9_]*(-[a-z0-9_]+)*", fullmatch=True))
def test_application_name_encodes_run_and_pool(run: str, pool: str) -> None:
    assert split_app_name(app_name(run, pool)) == (run, pool)


def test_foreign_applications_belong_to_no_run() -> None:
    assert split_app_name("default") == ("", "")
    assert split_app_name("hamr-without-mark") == ("", "")
    assert split_app_name("their--app") == ("", "")
