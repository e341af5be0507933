"""Ray session of one run: start or join a cluster, and clean up afterwards."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hamr import signals
from hamr.cluster.cluster_preflight import OWNER, TOKEN, check_joinable
from hamr.cluster.nodes import check_alike
from hamr.config.cluster_security import check_cluster_address
from hamr.config.schema import ClusterConfig
from hamr.errors import BadInput, HamrError
from hamr.models.weights import sweep_stale
from hamr.security import processes

MIN_LOGICAL_CPUS = 8
"""Minimum logical CPUs of a local Ray. Most actors wait and request fractions of a CPU."""

SHARED_MEMORY = "/dev/shm"
"""Folder of weight files, which a killed trainer leaves behind."""
ALIKE_S = 60.0
"""Longest wait for the nodes of a cluster to report their versions."""


def local_cpus(cluster: ClusterConfig) -> int:
    """Return the number of logical CPUs that a local Ray of this run offers."""
    return cluster.num_cpus or max(MIN_LOGICAL_CPUS, os.cpu_count() or 1)


def check_cluster(cluster: ClusterConfig) -> None:
    """Check that the cluster at `cluster.address` may be joined and accepts this process. Raises BadInput.

    Without an address, `cluster.temp_dir` is made if it is missing. Call it before anything is prepared for the
    cluster.
    """
    if cluster.address is not None:
        check_cluster_address(cluster.address, allow_unauthenticated=cluster.allow_unauthenticated)
        check_joinable(cluster.address)
    elif cluster.temp_dir is not None:
        try:
            Path(cluster.temp_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = f"the folder cannot be made ({error.strerror}); give another one"
            raise BadInput("cluster.temp_dir", cluster.temp_dir, remedy) from None


@contextlib.contextmanager
def ray_session(cluster: ClusterConfig, *, logs: Path | None = None) -> Iterator[None]:
    """Provide Ray while the body runs: a private local one, or the cluster at `cluster.address`.

    A local Ray requires its own token and uses a short private folder (socket paths hold 107 bytes). Such folders that
    killed processes of this user have left are removed. Ray is shut down on every exit: return, exception, SIGINT,
    SIGTERM (raised as `SystemExit(143)` during the session, unless `hamr.signals` handles it). After a signal its
    processes are killed instead of drained, since their state is no longer needed. Worker logs are kept in `logs` if
    given. Otherwise they are kept in the folder if `cluster.temp_dir` names one or the body failed, and removed if not.
    A joined cluster is only left; `stop_pools` removes its pools.

    Raises:
        BadInput: Ray cannot be reached or started, or a node has another Python, Ray or hamr than this process.
    """
    import ray

    with sigterm_as_exit():
        if cluster.address is not None:
            check_cluster(cluster)
            _init(cluster.address, address=cluster.address)
            try:
                check_alike(ALIKE_S)
                yield
            finally:
                ray.shutdown()
            return
        _guard_with_token()
        with _private_folder(cluster, logs) as folder, signals.cleaned_up(lambda: _remove_traces(folder)):
            _own_ray.append(folder)
            try:
                _init(
                    "a local Ray",
                    num_cpus=local_cpus(cluster),
                    object_store_memory=cluster.object_store_mb << 20,
                    include_dashboard=False,
                    _temp_dir=str(folder / RAY),
                )
                yield
            finally:
                at_once = ends_at_once()
                _own_ray.remove(folder)
                if at_once:
                    signals.silence_native_code()
                    processes.kill_descendants()
                    sweep_stale(SHARED_MEMORY)
                else:
                    _stop_local()


_own_ray: list[Path] = []
"""Folder of the local Ray that this process has started, if any."""


def ends_at_once() -> bool:
    """Return whether a signal is ending this process, and with it the local Ray that it has started.

    Its actors and pools then need no graceful shutdown, because `ray_session` kills all of them. A drain would take
    seconds each.
    """
    return signals.pending_signal() is not None and bool(_own_ray)


def enter_folder(folder: str) -> None:
    """Make the driver's working folder that of an actor, for files with relative paths, such as prompts and rules.

    A node may not have the folder. The actor then keeps its own, where a submitted job finds the package's files.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _remove_traces(folder: Path) -> None:
    """Remove what killed processes have left: Ray's folder, and weight files in shared memory."""
    shutil.rmtree(folder, ignore_errors=True)
    sweep_stale(SHARED_MEMORY)


def _init(what: str, address: str | None = None, **options: Any) -> None:
    """Join the cluster at `address`, or start a Ray; the variable RAY_ADDRESS would otherwise make Ray join one."""
    import ray

    # Without this, every start of Ray announces that future releases will treat num_gpus=0 differently.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray starts its workers with niceness 15, so every heartbeat of Ray's own processes interrupts them. On two cores a
    # trainer's two threads then spend a third of their time waiting for each other.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Every actor has an environment of its own, for which the workers that Ray starts in advance cannot be used.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    try:
        with _sigterm_handler_kept(), _sigterm_blocked():
            options |= {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
            ray.init(address=address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as e:
        reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        # Addresses that could not be checked before (`auto`, `ray://`) may need a token; Ray's exception does not say
        # so.
        token = f"; if it requires a token, set the same one here: {TOKEN}" if address else ""
        raise BadInput("cluster.address", address, f"cannot start or reach {what}: {reason}{token}") from e
    except Exception as e:
        if type(e) is not Exception:
            raise
        # Raised if Ray's own processes were not up within 30 seconds, a limit that cannot be configured.
        raise HamrError(
            f"{what} did not start in Ray's 30 seconds; reduce the load of the machine and retry: {e}"
        ) from e
    # Deaths of workers are handled and logged. Ray would also print them into the progress display.
    ray._private.worker._worker_logs_enabled = False


@contextlib.contextmanager
def _sigterm_handler_kept() -> Iterator[None]:
    """Keep this process's SIGTERM handler while the body starts Ray, whose handler would lose the exit code."""
    from ray._private import utils

    before = signal.getsignal(signal.SIGTERM)
    install, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = install
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's core has installed a C handler, which prints its stack


@contextlib.contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Have the processes that the body starts ignore SIGTERM, as Ray has them ignore SIGINT.

    A terminal, Slurm or the init process of a container may send it to all processes of a run. Without Ray, the run
    could not keep its step.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop_local() -> None:
    """Stop Serve's replicas first, so that engines close their shared memory; then Ray's processes."""
    import psutil
    import ray

    try:
        # Serve is loaded only if this process started pools; otherwise shutdown would only log that nothing runs.
        if ray.is_initialized() and "ray.serve" in sys.modules:
            from ray import serve

            serve.shutdown()
    finally:
        workers = [
            p for child in psutil.Process().children() if child.name() == "raylet" for p in processes.descendants(child)
        ]
        # Ray sends SIGTERM, which its processes ignore (`_sigterm_blocked`), and would wait a second for each.
        terminate, subprocess.Popen.terminate = subprocess.Popen.terminate, subprocess.Popen.kill  # type: ignore[method-assign]
        try:
            ray.shutdown()
        finally:
            subprocess.Popen.terminate = terminate  # type: ignore[method-assign]
            processes.kill([process for process in workers if process.is_running()])


def _guard_with_token() -> None:
    """Require this process's token for a local Ray, unless `RAY_AUTH_MODE` says otherwise.

    With a token in the environment, Ray enables the check itself and writes no token into the home folder. The token
    stays for the life of the process, because Ray reads it once.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)


RAY = "ray"
"""Folder for Ray in the private one. Ray lets all users write to its folder."""


@contextlib.contextmanager
def _private_folder(cluster: ClusterConfig, logs: Path | None) -> Iterator[Path]:
    given = cluster.temp_dir is not None
    root = Path(cluster.temp_dir).absolute() if cluster.temp_dir else Path(tempfile.gettempdir())
    root.mkdir(parents=True, exist_ok=True)
    _sweep_folders(root)
    folder = Path(tempfile.mkdtemp(prefix="hamr-", dir=root))
    (folder / OWNER).write_text(json.dumps(processes.identity()), encoding="utf-8")
    (folder / RAY).mkdir()
    keep = True
    try:
        yield folder
        keep = given
    except BaseException:
        # After an error the logs of a Ray that has started are kept.
        started = any(folder.glob(f"{RAY}/*"))
        keep = given or (started and signals.pending_signal() is None)
        raise
    finally:
        if logs is not None:
            for session in folder.glob(f"{RAY}/session_2*/logs"):
                _keep_logs(session, logs / session.parent.name)
        if logs is not None or not keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            (folder / OWNER).unlink(missing_ok=True)


def _keep_logs(session: Path, target: Path) -> None:
    """Copy the logs. An error, such as a full disk, is one line and does not hide that of the run."""
    try:
        shutil.copytree(session, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    except OSError as error:
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        logging.getLogger(__name__).warning("the logs of Ray are not kept in %s: %s", target, reason)


def _sweep_folders(root: Path) -> None:
    """Remove the private folders of killed processes of this user. Folders that were kept on purpose have no owner."""
    for note in root.glob(f"hamr-*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mine = note.stat().st_uid == os.getuid()
            if mine and processes.has_ended(json.loads(note.read_text(encoding="utf-8"))):
                shutil.rmtree(note.parent, ignore_errors=True)


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Raise SIGTERM as an exception, so that `finally` runs, unless `hamr.signals` handles it already.

    This is for scripts that use hamr as a library. It does not change their Ctrl-C.
    """
    if signals.is_handled() or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: signals.raise_exit(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
