"""Error messages if Ray does not start."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import ray

from hamr.cluster.session import OWNER, _keep_logs, check_cluster, ray_session
from hamr.config.load import load_config
from hamr.errors import BadInput, HamrError
from hamr.security import processes


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
    raised: Exception, kind: type[HamrError], code: int, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def init(**options: object) -> None:
        raise raised

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(kind) as caught, ray_session(load_config(["experiment=smoke"]).cluster):
        pass
    assert (caught.value.exit_code, type(caught.value)) == (code, kind)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "Ray has written nothing that would be kept"


@pytest.mark.parametrize("name", ["x" * 300, "file/folder"])
def test_temporary_folder_that_cannot_be_made_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cluster = load_config(["experiment=smoke", f"cluster.temp_dir={tmp_path / name}"]).cluster
    with pytest.raises(BadInput, match=r"^cluster\.temp_dir: .*cannot be made \("):
        check_cluster(cluster)


def ray_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a session gives to Ray, which does not start."""
    given: list[Path] = []

    def init(*, _temp_dir: str, **options: object) -> None:
        given.append(Path(_temp_dir))
        given[0].chmod(0o777)  # as Ray does
        raise RuntimeError("no")

    monkeypatch.setattr(ray, "init", init)
    cluster = load_config(["experiment=smoke", f"cluster.temp_dir={root}"]).cluster
    with pytest.raises(BadInput), ray_session(cluster):
        pass
    return given[0]


def test_other_users_do_not_see_the_folder_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ray_folder(tmp_path, monkeypatch)
    assert folder.parent.parent == tmp_path
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_only_folders_of_killed_processes_of_this_host_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = processes.identity()
    owners = {
        "hamr-killed": me | {"started": "1"},
        "hamr-running": me,
        "hamr-elsewhere": me | {"started": "1", "host": "other"},
        "mine": me | {"started": "1"},
    }
    for name, owner in owners.items():
        (tmp_path / name / "ray").mkdir(parents=True)
        (tmp_path / name / OWNER).write_text(json.dumps(owner))
    (tmp_path / "hamr-damaged").mkdir()
    (tmp_path / "hamr-damaged" / OWNER).write_text("[]")
    kept = ray_folder(tmp_path, monkeypatch).parent
    assert kept.is_dir() and not (kept / OWNER).exists(), "the user named the folder, so it is kept for its logs"
    ray_folder(tmp_path, monkeypatch)
    assert kept.is_dir()
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= {"hamr-running", "hamr-elsewhere", "hamr-damaged", "mine"} and "hamr-killed" not in left


def test_logs_that_cannot_be_kept_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "worker.out").write_text("x")
    (tmp_path / "file").write_text("")
    _keep_logs(tmp_path / "session", tmp_path / "file" / "logs")
    assert [record.exc_info for record in caplog.records] == [None]
    assert str(tmp_path / "file" / "logs") in caplog.text
