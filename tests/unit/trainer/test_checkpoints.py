import asyncio
import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hamr.errors import HamrError, RunFolderError
from hamr.trainer import checkpoints
from hamr.trainer.checkpoints import Checkpoints
from tests.permissions import file_permissions_enforced


def writer(text):
    async def write(folder):
        (folder / "policy").mkdir()
        (folder / "policy" / "weights.bin").write_text(text)
        (folder / "rng.json").write_text("[]")

    return write


async def test_newest_checkpoint_is_loaded_with_its_state(tmp_path):
    c = Checkpoints(tmp_path)
    assert c.newest() is None
    await c.save(1, writer("one"), {"data": {"epoch": 0, "at": 8}, "wandb": "abc"})
    await c.save(10, writer("ten"), {"data": {"epoch": 1, "at": 0.1}})
    newest = c.newest()
    assert (newest.step, newest.path.name, newest.state) == (10, "step_10", {"data": {"epoch": 1, "at": 0.1}})
    assert (newest.path / "policy" / "weights.bin").read_text() == "ten"


async def test_older_checkpoints_are_removed_down_to_keep(tmp_path):
    c = Checkpoints(tmp_path, keep=2)
    for step in range(1, 6):
        await c.save(step, writer("x"), {})
        assert [p.step for p in c.all()] == list(range(step, max(step - 2, 0), -1))
    assert sorted(os.listdir(tmp_path)) == ["step_4", "step_5"]


async def test_damaged_checkpoints_do_not_count_towards_keep(tmp_path):
    c = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        await c.save(step, writer("x"), {})
    (tmp_path / "step_3" / "rng.json").unlink()
    await c.save(4, writer("x"), {})
    assert [p.step for p in c.all()] == [4, 2]


async def test_damaged_large_file_does_not_count_until_its_step_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_QUICK_BYTES", 2)
    for step in (10, 20):
        await Checkpoints(tmp_path).save(step, writer("one"), {})
    (tmp_path / "step_20" / "policy" / "weights.bin").write_text("eno")
    resumed = Checkpoints(tmp_path)
    assert resumed.newest().step == 10
    assert [p.step for p in resumed.all()] == [10]
    await resumed.save(13, writer("two"), {})
    assert [p.step for p in resumed.all()] == [13, 10]
    await resumed.save(20, writer("two"), {})
    assert [p.step for p in resumed.all()] == [20, 13]


async def test_policies_need_only_whole_policy_files(tmp_path):
    c = Checkpoints(tmp_path, keep=3)
    assert list(c.policies()) == []
    for step in (1, 2, 3):
        await c.save(step, writer("x"), {})
    (tmp_path / "step_3" / "policy" / "weights.bin").unlink()
    (tmp_path / "step_2" / "rng.json").unlink()
    assert c.newest().step == 1
    assert [kept.path for kept in c.policies()][:1] == [tmp_path / "step_2"]


DAMAGE = {
    "is missing": lambda p: (p / "rng.json").unlink(),
    "bytes instead of": lambda p: (p / "policy" / "weights.bin").write_text("shorter or longer"),
    "weights.bin does not match": lambda p: (p / "policy" / "weights.bin").write_text("owt"),
    "state.json is missing": lambda p: (p / "state.json").unlink(),
    "state.json is damaged": lambda p: (p / "state.json").write_text('{"step": 2, "st'),
    "state.json does not match": lambda p: (p / "state.json").write_text(
        (p / "state.json").read_text().replace('"at": 2', '"at": 3')
    ),
    "belongs to step 2": lambda p: p.rename(p.with_name("step_3")),
}


@pytest.mark.parametrize("problem", DAMAGE)
async def test_incomplete_checkpoint_is_skipped_with_a_warning(tmp_path, caplog, problem):
    c = Checkpoints(tmp_path)
    await c.save(1, writer("one"), {"at": 1})
    await c.save(2, writer("two"), {"at": 2})
    DAMAGE[problem](tmp_path / "step_2")
    with caplog.at_level(logging.WARNING):
        assert c.newest().step == 1
    assert problem in caplog.text


LARGE = 3 * (4 << 20) // 2


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Run with a newest checkpoint whose weights are above the limit of the quick check."""
    folder = tmp_path_factory.mktemp("large")

    async def write(path):
        (path / "policy").mkdir()
        (path / "policy" / "weights.bin").write_bytes(random.Random(0).randbytes(LARGE))

    asyncio.run(Checkpoints(folder).save(1, writer("one"), {}))
    asyncio.run(Checkpoints(folder).save(2, write, {}))
    return folder


@settings(deadline=None, max_examples=25)
@given(at=st.integers(0, LARGE - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_large_weights_is_found(large, at, bit):
    def flip():
        with (large / "step_2" / "policy" / "weights.bin").open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << bit]))

    assert Checkpoints(large).newest().step == 2
    flip()
    try:
        assert Checkpoints(large).newest().step == 1
        assert [c.step for c in Checkpoints(large).policies()] == [1]
    finally:
        flip()


async def test_checkpoint_without_hashes_of_large_files_is_loaded(large, monkeypatch):
    state = json.loads((large / "step_2" / "state.json").read_text())
    del state["sha256"]
    state["files"]["policy/weights.bin"]["sha256"] = None
    older = large.with_name("older")
    shutil.copytree(large, older)
    (older / "step_2" / "state.json").write_text(json.dumps({**state, "sha256": checkpoints._digest(state)}))
    assert Checkpoints(older).newest().step == 2


async def test_resume_is_refused_if_every_checkpoint_is_damaged(tmp_path):
    c = Checkpoints(tmp_path)
    await c.save(1, writer("one"), {})
    (tmp_path / "step_1" / "policy" / "weights.bin").write_text("eno")
    with pytest.raises(RunFolderError, match=r"step_1'?: policy/weights\.bin does not match its checksum, .*copy") as e:
        Checkpoints(tmp_path).newest()
    assert "\n" not in str(e.value)


async def test_saving_does_not_read_large_files_of_earlier_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_QUICK_BYTES", 2)
    c = Checkpoints(tmp_path)
    await c.save(1, writer("one"), {})
    read = []
    monkeypatch.setattr(checkpoints, "_file_sha256", lambda path: read.append(path.parts[-3:]) or "")
    await c.save(2, writer("two"), {})
    assert {step for step, *_ in read if step.startswith("step_")} == set()


async def test_repeated_save_of_a_step_replaces_the_former(tmp_path):
    c = Checkpoints(tmp_path)
    await c.save(1, writer("one"), {"at": 1})
    await c.save(1, writer("new"), {"at": 2})
    assert c.newest().state == {"at": 2}
    assert os.listdir(tmp_path) == ["step_1"]


async def test_checkpoint_interrupted_during_replacement_is_recovered(tmp_path):
    c = Checkpoints(tmp_path)
    await c.save(1, writer("one"), {"at": 1})
    (tmp_path / "step_1").rename(tmp_path / ".step_1.replaced")
    assert c.newest().state == {"at": 1}
    await c.save(2, writer("two"), {})
    assert sorted(os.listdir(tmp_path)) == ["step_1", "step_2"]


class TorchWriteError(RuntimeError):
    pass


FULL = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    TorchWriteError("I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL, ids=["no space", "quota", "as text"])
async def test_full_disk_raises_one_error_and_leaves_no_files(tmp_path, error):
    c = Checkpoints(tmp_path)
    await c.save(1, writer("one"), {})

    async def write(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("worker failed") from error

    with pytest.raises(HamrError, match=r"step 2: no space left .*experiment\.run_dir") as e:
        await c.save(2, write, {})
    assert "\n" not in str(e.value)
    assert os.listdir(tmp_path) == ["step_1"]


def test_folder_without_write_access_raises_one_error_and_keeps_checkpoints(tmp_path):
    c = Checkpoints(tmp_path)
    asyncio.run(c.save(1, writer("one"), {}))
    tmp_path.chmod(0o555)
    try:
        with (
            file_permissions_enforced(),
            pytest.raises(RunFolderError, match=r"step 2: '.*\.step_2\.tmp': permission denied; .*resume=") as e,
        ):
            asyncio.run(c.save(2, writer("two"), {}))
    finally:
        tmp_path.chmod(0o755)
    assert "\n" not in str(e.value)
    assert os.listdir(tmp_path) == ["step_1"]


async def test_file_that_a_rank_may_not_write_is_named_by_its_folder(tmp_path):
    async def write(folder):
        raise TorchWriteError("I/O error: Permission denied (os error 13)")

    with pytest.raises(RunFolderError, match=f"step 1: '{tmp_path}': permission denied"):
        await Checkpoints(tmp_path).save(1, write, {})


async def test_other_errors_are_raised_and_leave_no_files(tmp_path):
    async def write(folder):
        (folder / "half").write_text("x")
        raise KeyError("optimizer")

    with pytest.raises(KeyError, match="optimizer"):
        await Checkpoints(tmp_path).save(1, write, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        await Checkpoints(tmp_path).save(1, writer("x"), {"loss": float("nan")})
    assert os.listdir(tmp_path) == []


async def test_cancelled_save_leaves_no_files(tmp_path):
    started = asyncio.Event()

    async def write(folder):
        started.set()
        await asyncio.sleep(600)

    task = asyncio.create_task(Checkpoints(tmp_path).save(1, write, {}))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == []


class Copier:
    """Copies a text; writes it when `may_write` is set."""

    def __init__(self, error=None):
        self.text, self.error, self.may_write = "one", error, asyncio.Event()

    async def __call__(self, folder):
        text = self.text

        async def write():
            await self.may_write.wait()
            (folder / "half").write_text(text)
            if self.error:
                raise self.error

        return write


async def test_checkpoint_written_later_has_the_copied_state_and_counts_when_complete(tmp_path):
    c, copier, state = Checkpoints(tmp_path), Copier(), {"stream": {"at": 1}}
    await c.save_later(1, copier, state)
    copier.text, state["stream"]["at"] = "two", 2
    await c.settle(wait=False)
    assert c.newest() is None and Checkpoints(tmp_path).all() == []
    following = asyncio.create_task(c.save(2, writer("two"), state))
    await asyncio.sleep(0.01)
    assert os.listdir(tmp_path) == [".step_1.tmp"], "the next one waits"
    copier.may_write.set()
    assert (await following).step == 2
    assert [(kept.step, kept.state) for kept in c.all()] == [(2, {"stream": {"at": 2}}), (1, {"stream": {"at": 1}})]
    assert (tmp_path / "step_1" / "half").read_text() == "one"


@pytest.mark.parametrize(("error", "seen"), [(FULL[0], HamrError), (KeyError("optimizer"), KeyError)])
async def test_error_of_a_later_write_is_raised_once_and_leaves_no_files(tmp_path, error, seen):
    c, copier = Checkpoints(tmp_path), Copier(error)
    await c.save_later(1, copier, {})
    copier.may_write.set()
    with pytest.raises(seen, match="no space left|optimizer"):
        await c.save(2, writer("two"), {})
    assert os.listdir(tmp_path) == []
    await c.save(2, writer("two"), {})
    async with c:
        await c.save_later(3, copier, {})
        with pytest.raises(seen):
            await c.settle()
    assert os.listdir(tmp_path) == ["step_2"]


async def test_end_of_a_run_waits_for_the_write(tmp_path, caplog):
    copier = Copier()
    copier.may_write.set()

    async def run(step):
        async with Checkpoints(tmp_path) as c:
            await c.save_later(step, copier, {})
            raise ValueError("scorer")

    with pytest.raises(ValueError, match="scorer"):
        await run(1)
    assert os.listdir(tmp_path) == ["step_1"]
    copier.error = KeyError("rank died")
    with pytest.raises(ValueError, match="scorer"):
        await run(2)
    assert os.listdir(tmp_path) == ["step_1"] and "rank died" in caplog.text


async def test_cancelled_run_drops_the_checkpoint_under_way(tmp_path):
    async def run():
        async with Checkpoints(tmp_path) as c:
            await c.save(1, writer("one"), {})
            await c.save_later(2, Copier(), {})
            await asyncio.sleep(600)

    task = asyncio.create_task(run())
    while not (tmp_path / ".step_2.tmp").exists():
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.listdir(tmp_path) == ["step_1"]


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)))
def test_any_json_state_survives_the_round_trip(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("c")
    asyncio.run(Checkpoints(folder).save(1, writer("x"), state))
    assert Checkpoints(folder).newest().state == state


SAVER = """
import asyncio, functools, sys
from hamr.trainer.checkpoints import Checkpoints
from tests.permissions import file_permissions_enforced
c = Checkpoints(sys.argv[1])
newest = c.newest()
first = newest.step if newest else 0
async def write(folder):
    for i in range(20):
        (folder / f"shard_{i}.bin").write_bytes(bytes([i]) * 2000)
async def copy(folder):
    return functools.partial(write, folder)
async def main():
    for step in range(first, first + 10000):   # the first one replaces the newest
        if sys.argv[2] == "later":
            await c.save_later(step, copy, {"step": step})
            await c.settle()
        else:
            await c.save(step, write, {"step": step})
        print(step, flush=True)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["now", "later"])
def test_whole_checkpoint_survives_a_kill_at_any_point(tmp_path, when):
    draw = random.Random(0)
    done = -1
    for _ in range(6):
        saver = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path), when], stdout=subprocess.PIPE, text=True)
        done = max(done, int(saver.stdout.readline()))
        time.sleep(draw.uniform(0, 0.05))
        saver.send_signal(signal.SIGKILL)
        done = max([done, *(int(line) for line in saver.stdout.read().split("\n") if line)])
        saver.wait()
        newest = Checkpoints(tmp_path).newest()
        # Whatever was reported as saved is there; the one after it may have made it too.
        assert newest.step in (done, done + 1)
        assert newest.state == {"step": newest.step}
        assert len(os.listdir(newest.path)) == 21
        done = newest.step
    asyncio.run(Checkpoints(tmp_path).save(done + 1, writer("x"), {}))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
    assert json.loads((tmp_path / f"step_{done + 1}" / "state.json").read_text())["step"] == done + 1


KILLED_SAVER = """
import asyncio, os, shutil, signal, sys
from pathlib import Path
from hamr.trainer.checkpoints import Checkpoints

base, out, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
before_kill = 0

def kill(event, args):
    global before_kill
    if before_kill and (event.startswith(("os.", "shutil.")) or event == "open" and str(args[0]).startswith(str(out))):
        before_kill -= 1
        if not before_kill:
            os.kill(os.getpid(), signal.SIGKILL)

def fsync(fd, fsync=os.fsync):
    sys.audit("os.fsync", str(out))
    fsync(fd)

async def write(folder):
    (folder / "policy").mkdir()
    for name in ("policy/weights.bin", "rng.json"):
        with (folder / name).open("wb", buffering=0) as file:
            file.write(b"n")
            sys.audit("os.write", str(file.name))
            file.write(b"ew")

sys.addaudithook(kill)
os.fsync = fsync
for number in range(1, 1000):
    folder = out / str(number)
    shutil.copytree(base, folder)
    saver = os.fork()
    if not saver:
        before_kill = number
        asyncio.run(Checkpoints(folder).save(step, write, {"text": "new"}))
        os._exit(0)
    if os.waitpid(saver, 0)[1] == 0:
        break
"""
"""Saves a copy of checkpoints in a process that is killed before its first file operation, its second, and so on."""


@pytest.mark.deep
@pytest.mark.parametrize("begun", ["next", "same step", "after a kill"])
def test_kill_before_any_file_operation_leaves_whole_checkpoint(tmp_path, begun):
    base, out, step = tmp_path / "base", tmp_path / "out", 2 if begun == "same step" else 3
    for old in (1, 2):
        asyncio.run(Checkpoints(base).save(old, writer("old"), {"text": "old"}))
    if begun == "after a kill":
        shutil.copytree(base / "step_2", base / ".step_3.tmp")
        (base / "step_2").rename(base / ".step_2.replaced")
    subprocess.run([sys.executable, "-c", KILLED_SAVER, str(base), str(out), str(step)], check=True)
    texts = []
    for folder in sorted(out.iterdir(), key=lambda folder: int(folder.name)):
        newest = Checkpoints(folder).newest()
        texts.append((newest.path / "policy" / "weights.bin").read_text())
        assert (newest.state, newest.step) == ({"text": texts[-1]}, step if texts[-1] == "new" else 2)
        asyncio.run(Checkpoints(folder).save(4, writer("next"), {}))
        assert sorted(os.listdir(folder)) == [f"step_{newest.step}", "step_4"]
    assert texts.index("new") > 20 and texts.count("new") > 5
    assert texts == sorted(texts, key=["old", "new"].index), "once the new one is whole, it stays"
