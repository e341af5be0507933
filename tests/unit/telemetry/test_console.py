import io

import pytest
from rich.console import Console as RichConsole

from hamr.telemetry.console import Console, duration, sparkline


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_sparkline_scales_values():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([]) == ""
    assert sparkline([float(i) for i in range(120)], width=8) == "▁▂▃▄▅▆▇█"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.04, "0.0 s"), (59.96, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_duration_is_formatted(seconds, shown):
    assert duration(seconds) == shown


def test_plain_lines_are_printed_without_a_terminal():
    out, clock = io.StringIO(), Clock()
    with Console(file=out, clock=clock) as console:
        with console.phase("model"):
            clock.now += 3
        with console.phase("rl"):
            clock.now += 10
            console.step(1, 5, {"reward/total/mean": 0.25, "router/escalated_frac": 0.5, "policy/entropy": 1.0})
            clock.now += 10
            console.step(2, 5, {"reward/total/mean": 0.5, "rollout/tokens": 500.0, "timing/step/total": 10.0})
        console.evaluation(
            "rl", {"eval/rl/action_accuracy": 0.75, "eval/rl/reward/total": 1.5, "eval/rl/reward/rules": 1.0}
        )
        console.note("no [markup] here")
    text = out.getvalue()
    assert "model: done in 3.0 s" in text
    assert "rl step 1/5: reward 0.250, escalated 50%, entropy 1.000\n" in text
    assert "rl step 2/5: reward 0.500, tokens/s 50, seconds 10.0, about 30.0 s left\n" in text
    assert "held out, rl: action accuracy 0.750, reward 1.500\n" in text
    assert "no [markup] here" in text
    assert "\x1b" not in text
    assert console.seconds == {"model": 3.0, "rl": 20.0}


def test_notes_contain_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "canary-7f3a")
    out = io.StringIO()
    Console(file=out).note("logging.callbacks: raised ValueError: canary-7f3a")
    assert "canary" not in out.getvalue() and "raised ValueError: [redacted]" in out.getvalue()


def test_failed_phase_is_marked_and_its_error_raised():
    out = io.StringIO()
    console = Console(file=out)
    with pytest.raises(KeyError), console.phase("data"):
        raise KeyError("x")
    assert "data: failed" in out.getvalue()


def test_the_live_display_shows_phases_steps_and_the_curve():
    out = io.StringIO()
    with Console("run <1>", file=out, live=True) as console:
        with console.phase("sft"):
            console.step(1, 1, {"sft/loss": 2.0})
        with console.phase("rl"):
            for step in (1, 2, 3):
                console.step(step, 3, {"reward/total/mean": step / 4, "policy/entropy": 1.0})
    text = out.getvalue()
    for expected in ("✓  sft", "✓  rl", "3/3", "rl 3", "0.750", "▁▅█", "0.250 to 0.750", "run <1>"):
        assert expected in text


def test_disabled_console_is_silent_but_measures_time():
    out, clock = io.StringIO(), Clock()
    console = Console(enabled=False, file=out, clock=clock)
    with console.phase("rl"):
        clock.now += 2
        console.step(1, 1, {})
        console.note("x")
    assert out.getvalue() == ""
    assert console.seconds == {"rl": 2.0}


def test_nested_phase_is_counted_once():
    clock = Clock()
    console = Console(enabled=False, clock=clock)
    with console.phase("rl"):
        clock.now += 5
        with console.phase("evaluation rl-5"):
            clock.now += 2
        clock.now += 1
    assert console.seconds == {"evaluation rl-5": 2.0, "rl": 6.0}


def test_silent_phase_prints_progress_every_25_seconds():
    out, clock = io.StringIO(), Clock()
    with Console(file=out, live=True, clock=clock) as console, console.phase("rl"):
        console.step(1, 4, {})
        clock.now += 60
        console.pulse()
    assert "running for" not in out.getvalue(), "a terminal has its display"
    out = io.StringIO()
    with Console(file=out, live=False, clock=clock) as console, console.phase("rl"):
        console._closed.set()  # the thread that calls `pulse` every second would race the test's clock
        clock.now += 10
        console.pulse()
        assert "running" not in out.getvalue()
        clock.now += 20
        console.pulse()
        console.step(1, 4, {})
        console.progress(0, 64, "responses scored")
        clock.now += 30
        console.progress(16, 64, "responses scored")
        console.pulse()
    text = out.getvalue()
    assert "rl: running for 30.0 s\n" in text
    assert "rl: running for 1 min 00 s, step 2/4, 16/64 responses scored, about 1 min 30 s left\n" in text


def test_progress_is_reset_at_the_next_step():
    out, clock = io.StringIO(), Clock()
    with Console(file=out, live=False, clock=clock) as console, console.phase("rl"):
        console._closed.set()
        console.progress(64, 64, "responses scored")
        console.step(1, 4, {})
        clock.now += 30
        console.pulse()
        console.step(4, 4, {})
        clock.now += 30
        console.pulse()
    assert "rl: running for 30.0 s, step 2/4\n" in out.getvalue()
    assert "rl: running for 1 min 00 s, step 4/4\n" in out.getvalue()


def test_live_display_estimates_the_end_of_a_phase_without_steps():
    clock = Clock()
    with Console(file=io.StringIO(), live=True, clock=clock) as console, console.phase("scorers"):
        console.progress(0, 750, "training steps of the reranker")
        clock.now += 30
        console.progress(250, 750, "training steps of the reranker")
        screen = RichConsole(file=io.StringIO(), width=100)
        screen.print(console._render())
    assert "250/750  about 1 min 00 s left" in screen.file.getvalue()
