"""The circuit breaker on a fake clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.faults import BreakerConfig
from hamr.pools.circuit_breaker import PROBING_S, Breaker

CONFIG = BreakerConfig(failure_frac=0.5, min_count=4, window_s=10.0, cooldown_s=5.0, probes=2)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(CONFIG, clock)


def ask(breaker, *ends):
    for end in ends:
        ticket = breaker.admit()
        assert ticket is not None
        breaker.settle(ticket, end)


def opened(breaker):
    ask(breaker, False, False, False, False)
    assert breaker.state == "open"
    return breaker


def test_breaker_opens_at_the_failure_rate_after_the_minimum_count(breaker):
    ask(breaker, False, False, False)
    assert breaker.state == "closed"
    ask(breaker, False)
    assert (breaker.state, breaker.admit(), breaker.openings) == ("open", None, 1)


def test_non_consecutive_failures_open_the_breaker(breaker):
    ask(breaker, True, False, True, False)
    assert breaker.state == "open"


def test_lower_failure_rate_keeps_the_breaker_closed(breaker):
    ask(breaker, *[True, False, True] * 20)
    assert breaker.state == "closed"


def test_failures_older_than_the_window_are_ignored(breaker, clock):
    ask(breaker, False, False, False)
    clock.now = 10.5
    ask(breaker, False)
    assert breaker.state == "closed"


def test_success_never_opens_the_breaker(breaker, clock):
    """Five successes leave the window, so two old failures are half of four; without a new failure the breaker stays
    closed.
    """
    ask(breaker, *[True] * 5)
    clock.now = 5.0
    ask(breaker, False, False)
    clock.now = 12.0
    ask(breaker, True, True)
    assert breaker.state == "closed"


def test_successful_probes_close_the_breaker(breaker, clock):
    opened(breaker)
    clock.now = 3.0
    assert breaker.retry_in_s() == 2.0
    clock.now = 5.0
    assert breaker.state == "half_open"
    probes = [breaker.admit(), breaker.admit()]
    assert None not in probes
    assert (breaker.admit(), breaker.retry_in_s()) == (None, PROBING_S)
    breaker.settle(probes[0], True)
    assert breaker.admit() is None, "an answered probe makes no room for a third"
    breaker.settle(probes[1], True)
    assert breaker.state == "closed"
    ask(breaker, False, False, False)
    assert breaker.state == "closed", "the failures before the outage are forgotten"


def test_failed_probe_reopens_the_breaker(breaker, clock):
    opened(breaker)
    clock.now = 6.0
    first, second = breaker.admit(), breaker.admit()
    breaker.settle(first, False)
    assert (breaker.state, breaker.retry_in_s(), breaker.openings) == ("open", 5.0, 2)
    breaker.settle(second, True)
    assert breaker.state == "open", "the other probe belongs to the past"


def test_abandoned_probe_frees_its_slot(breaker, clock):
    opened(breaker)
    clock.now = 5.0
    probes = [breaker.admit(), breaker.admit()]
    breaker.settle(probes[0], None)
    again = breaker.admit()
    assert again is not None
    breaker.settle(probes[1], True)
    breaker.settle(again, True)
    assert breaker.state == "closed"


def test_calls_from_before_opening_are_not_probes(breaker, clock):
    old = [breaker.admit(), breaker.admit()]
    opened(breaker)
    clock.now = 5.0
    breaker.admit()
    for ticket in old:
        breaker.settle(ticket, True)
    assert breaker.state == "half_open"
    breaker.settle(old[0], False)
    assert breaker.state == "half_open"


@given(st.lists(st.tuples(st.floats(0, 4), st.sampled_from([True, False, None])), max_size=80))
def test_breaker_always_recovers(events):
    """After any history, a pool that answers is fully used again after one cool-down and its probes."""
    clock = Clock()
    breaker = Breaker(CONFIG, clock)
    for wait, end in events:
        clock.now += wait
        ticket = breaker.admit()
        if ticket is None:
            assert breaker.state == "open"
            assert 0.0 < breaker.retry_in_s() <= CONFIG.cooldown_s + 1e-9
        else:
            breaker.settle(ticket, end)
    clock.now += CONFIG.cooldown_s
    ask(breaker, *[True] * CONFIG.probes)
    assert breaker.state == "closed"
