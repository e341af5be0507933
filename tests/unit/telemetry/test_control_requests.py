"""Control requests through the run folder, from both sides."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hamr.errors import HamrError
from hamr.telemetry.control_requests import ControlRequests


def test_request_gets_its_own_answer_and_is_removed(tmp_path: Path) -> None:
    run, asks = ControlRequests(tmp_path), ControlRequests(tmp_path)
    answers: dict[int, dict] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: asks.ask({"n": n}, timeout_s=30)})) for n in range(3)
    ]
    for thread in threads:
        thread.start()
    served = 0
    while served < 3:
        request = run.take()
        if request is not None:
            run.answer(request, {"twice": 2 * request.body["n"]})
            served += 1
    for thread in threads:
        thread.join()
    assert answers == {n: {"twice": 2 * n} for n in range(3)}
    assert list(run.folder.iterdir()) == []
    assert run.take() is None


def test_unanswered_request_is_withdrawn(tmp_path: Path) -> None:
    with pytest.raises(HamrError, match=r"did not answer within 0\.2 s; nothing was changed"):
        ControlRequests(tmp_path).ask({"n": 1}, timeout_s=0.2)
    assert ControlRequests(tmp_path).take() is None


def test_accepted_request_may_still_take_effect(tmp_path: Path) -> None:
    box = ControlRequests(tmp_path)

    def alive() -> bool:
        box.take()
        return False

    with pytest.raises(HamrError, match="has ended; it had begun to act"):
        box.ask({"n": 1}, timeout_s=30, alive=alive)


def test_requests_are_taken_oldest_first_and_invalid_ones_dropped(tmp_path: Path) -> None:
    box = ControlRequests(tmp_path)
    box.folder.mkdir()
    for name, text in (("2", '{"n": 2}'), ("1", '{"n": 1}'), ("0", "no JSON")):
        (box.folder / f"{name}.ask.json").write_text(text)
    taken = [box.take(), box.take()]
    assert [t.body for t in taken if t] == [{"n": 1}, {"n": 2}]
    assert not (box.folder / "0.taken.json").exists()


def test_resumed_run_ignores_earlier_requests(tmp_path: Path) -> None:
    box = ControlRequests(tmp_path)
    box.folder.mkdir()
    (box.folder / "1.ask.json").write_text("{}")
    box.clear()
    assert box.take() is None
