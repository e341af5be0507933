"""Checks of pools before Ray starts."""

from __future__ import annotations

import pytest

from hamr.apps.shared.pool_room import check_pool_room
from hamr.config.load import load_config
from hamr.errors import BadInput

JUDGE = ["experiment=smoke", "pools.judge.type=openai", "pools.judge.model=m"]


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [("http://10.1.2.3/v1", "10.1.2.3 is private"), ("http://169.254.169.254/v1", "169.254.169.254 is link-local")],
)
def test_forbidden_address_is_rejected_before_a_local_ray_starts(
    endpoint: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config([*JUDGE, f"pools.judge.endpoint={endpoint}"])
    with pytest.raises(BadInput, match=rf"pools\.judge\.endpoint: .*{says}"):
        check_pool_room(config, config.pools, router=True)
    monkeypatch.setenv("HAMR_ALLOWED_HOSTS", "10.0.0.0/8,169.254.0.0/16")
    check_pool_room(config, config.pools, router=True)


def test_missing_key_is_named_before_a_local_ray_starts() -> None:
    config = load_config([*JUDGE, "pools.judge.endpoint=http://127.0.0.1:1/v1", "pools.judge.api_key_env=NOT_SET_HERE"])
    with pytest.raises(BadInput, match=r"pools\.judge\.api_key_env: 'NOT_SET_HERE'"):
        check_pool_room(config, config.pools, router=True)


def test_nodes_of_a_cluster_have_their_own_list_and_keys() -> None:
    config = load_config([*JUDGE, "pools.judge.endpoint=http://10.1.2.3/v1", "cluster.address=127.0.0.1:6379"])
    check_pool_room(config, config.pools, router=True)
