"""What the user is told where Ray does not start."""

from __future__ import annotations

import pytest
import ray

from hamr.cluster.session import ray_session
from hamr.config.load import load_config
from hamr.errors import BadInput, HamrError


@pytest.mark.parametrize(
    ("raised", "kind", "code", "said"),
    [
        (
            Exception("The current node timed out during startup. This could"),
            HamrError,
            1,
            "reduce the load of the machine",
        ),
        (RuntimeError("No space\nleft"), BadInput, 2, "cannot start or reach a local Ray: No space"),
    ],
)
def test_failed_ray_start_is_reported_in_one_line(
    raised: Exception, kind: type[HamrError], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**options: object) -> None:
        raise raised

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(kind) as caught, ray_session(load_config(["experiment=smoke"]).cluster):
        pass
    assert (caught.value.exit_code, type(caught.value)) == (code, kind)
    assert said in str(caught.value) and "\n" not in str(caught.value)
