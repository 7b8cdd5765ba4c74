"""`@app.cron`: the times of a calendar, what becomes of missed ones, and that a run that fails doesn't end them."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import App, ConfigurationError, Context, EffectCall, GivenUp, HandlerFailedError, OnError
from actors.declare.calendar import Cron, Missed, Tick, next_key
from actors.testing import ActorTestDriver
from tests.examples import examples

HOUR_S, DAY_S = 3600.0, 86_400.0
EXPRESSIONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "15 1,2,3 * * *", "0 12 29 2 *", "0 9 * * MON-FRI"]


def app_with(expression: str, tz: str = "UTC", missed: Missed = "once") -> App:
    app = App("calendar", broker="kafka://127.0.0.1:1")
    runs = app.topic("runs", key_type=str, value_type=str)

    @app.cron(expression, tz=tz, missed=missed)
    async def report(ctx: Context, at: datetime) -> None:
        ctx.send(runs, key=ctx.key, value=at.isoformat())

    return app


def driver_at(app: App, *now: int) -> ActorTestDriver:
    return ActorTestDriver(app, now=datetime(*now, tzinfo=UTC))  # type: ignore[misc, arg-type]


def runs_of(driver: ActorTestDriver) -> list[str]:
    return [sent.value for sent in driver.outputs("runs")]


# --- times -----------------------------------------------------------------------------------------------------------


def test_it_runs_at_its_times_and_nobody_sends_a_first_message() -> None:
    with driver_at(app_with("*/20 9 * * *"), 2026, 3, 2, 8) as driver:
        driver.advance(HOUR_S - 1)
        assert runs_of(driver) == []
        driver.advance(HOUR_S + DAY_S)
        days = [f"2026-03-0{day}T09:{minute}:00+00:00" for day in (2, 3) for minute in ("00", "20", "40")]
        assert runs_of(driver) == days


@pytest.mark.parametrize(
    ("expression", "now", "times"),
    [
        # 02:30 doesn't exist: the run is right behind the gap. The next day has it again.
        ("30 2 * * *", (2026, 3, 28, 12), ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("0 3 * * *", (2026, 3, 28, 12), ["2026-03-29T03:00:00+02:00", "2026-03-30T03:00:00+02:00"]),
        # 02:30 comes twice: the run is at the first one.
        ("30 2 * * *", (2026, 10, 24, 12), ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("0 3 * * *", (2026, 10, 24, 12), ["2026-10-25T03:00:00+01:00", "2026-10-26T03:00:00+01:00"]),
        ("0 */8 * * *", (2026, 10, 24, 23), ["2026-10-25T08:00:00+01:00", "2026-10-25T16:00:00+01:00"]),
    ],
)
def test_the_days_on_which_the_clocks_change(expression: str, now: tuple[int, ...], times: list[str]) -> None:
    with driver_at(app_with(expression, "Europe/Berlin"), *now) as driver:
        driver.advance(1.9 * DAY_S)
        assert runs_of(driver)[: len(times)] == times


def test_steps_go_on_through_the_hour_that_comes_twice() -> None:
    with driver_at(app_with("*/30 * * * *", "Europe/Berlin"), 2026, 10, 24, 23, 45) as driver:
        driver.advance(3 * HOUR_S)
        moments = [datetime.fromisoformat(at) for at in runs_of(driver)]
        assert [after - before for before, after in pairwise(moments)] == [timedelta(minutes=30)] * 5


def test_a_start_in_the_second_of_two_equal_hours_runs_nothing_of_the_first() -> None:
    with driver_at(app_with("30 2 * * *", "Europe/Berlin"), 2026, 10, 25, 1, 15) as driver:
        driver.advance(HOUR_S)
        assert runs_of(driver) == []
        driver.advance(DAY_S)
        assert runs_of(driver) == ["2026-10-26T02:30:00+01:00"]


@given(
    expression=st.sampled_from(EXPRESSIONS),
    due=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC)),
    minutes=st.integers(0, 8_000),
)
@settings(max_examples=examples(40))
def test_the_latest_time_is_that_of_a_walk_through_all(expression: str, due: datetime, minutes: int) -> None:
    cron = Cron.of("report", expression, "Europe/Berlin", "once")
    due = cron.after(due)
    until, walked = due + timedelta(minutes=minutes), due
    while (following := cron.after(walked)) <= until:
        walked = following
    assert cron.latest(due, until) == walked


# --- missed times ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "minutes"),
    [("once", [13]), ("each", [10, 11, 12, 13]), ("skip", [])],
)
def test_times_that_passed_while_no_worker_ran(missed: Missed, minutes: list[int]) -> None:
    with driver_at(app_with("10-13 * * * *", missed=missed), 2026, 3, 2, 8) as driver:
        driver.advance(60)
        driver.crash(down_s=HOUR_S / 2)
        assert runs_of(driver) == [f"2026-03-02T08:{minute}:00+00:00" for minute in minutes]
        driver.advance(0.75 * HOUR_S)
        assert runs_of(driver)[0] == "2026-03-02T09:10:00+00:00"


def test_a_run_that_is_a_few_seconds_late_isnt_missed() -> None:
    with driver_at(app_with("0 9 * * *", missed="skip"), 2026, 3, 2, 8, 59) as driver:
        driver.crash(down_s=80)
        assert runs_of(driver) == ["2026-03-02T09:00:00+00:00"]
        driver.crash(down_s=2 * DAY_S + HOUR_S)
        assert runs_of(driver) == []


def test_months_of_missed_minutes_are_one_run() -> None:
    with driver_at(app_with("* * * * *"), 2026, 3, 2, 8) as driver:
        driver.crash(down_s=100 * DAY_S)
        assert runs_of(driver) == ["2026-06-10T08:00:00+00:00"]


def test_a_crash_neither_loses_nor_repeats_a_time() -> None:
    with driver_at(app_with("* * * * *", missed="each"), 2026, 3, 2, 8) as driver:
        for keep_disk in (True, False, True, False):
            driver.advance(150)
            driver.crash(keep_disk=keep_disk, down_s=100)
        minutes = [datetime.fromisoformat(at).minute for at in runs_of(driver)]
        assert minutes == list(range(1, 17))


# --- what fails ------------------------------------------------------------------------------------------------------


def failing(on_error: str) -> App:
    app = App("calendar", broker="kafka://127.0.0.1:1")
    runs = app.topic("runs", key_type=str, value_type=str)

    @app.cron("0 * * * *", on_error=OnError(then=on_error, retries=0))  # type: ignore[arg-type]
    async def report(ctx: Context, at: datetime) -> None:
        if at.hour == 9:
            raise ValueError("no report at nine")
        ctx.send(runs, key=ctx.key, value=at.isoformat())

    return app


def test_a_skipped_run_doesnt_end_the_times() -> None:
    with driver_at(failing("skip"), 2026, 3, 2, 8) as driver:
        driver.advance(3 * HOUR_S)
        assert runs_of(driver) == ["2026-03-02T10:00:00+00:00", "2026-03-02T11:00:00+00:00"]


def test_runs_wait_behind_a_parked_one_and_go_on_when_it_is_dropped() -> None:
    with driver_at(failing("park"), 2026, 3, 2, 8) as driver:
        driver.advance(3 * HOUR_S)
        assert runs_of(driver) == []
        assert len(driver.parked("report")) == 3
        driver.drop_parked("report", "report")
        driver.advance(HOUR_S)
        assert runs_of(driver) == ["2026-03-02T12:00:00+00:00"]


def test_a_failed_run_stops_its_partition() -> None:
    with driver_at(failing("stop"), 2026, 3, 2, 8, 59) as driver, pytest.raises(HandlerFailedError, match="at nine"):
        driver.advance(120)


def test_an_effect_of_a_run_tells_the_cron_that_it_was_given_up() -> None:
    app = App("calendar", broker="kafka://127.0.0.1:1")
    runs = app.topic("runs", key_type=str, value_type=str)

    @app.effect(attempts=1, on_give_up="failed")
    async def post(call: EffectCall, day: str) -> None:
        raise ConnectionError("nobody answers")

    @app.cron("0 9 * * *", effects=[post])
    async def report(ctx: Context, at: datetime) -> None:
        ctx.effect(post, f"{at:%Y-%m-%d}")

    @report.timer  # type: ignore[attr-defined]
    async def failed(ctx: Context, outcome: GivenUp) -> None:
        ctx.send(runs, key=ctx.key, value=outcome.error)

    with ActorTestDriver(app, effects={post: post}, now=datetime(2026, 3, 2, 8, 59, tzinfo=UTC)) as driver:
        driver.advance(120)
        assert runs_of(driver) == ["ConnectionError: nobody answers"]


# --- other programs --------------------------------------------------------------------------------------------------


def test_a_changed_expression_replaces_the_former_one() -> None:
    with driver_at(app_with("0 0 1 * *"), 2026, 3, 2, 8) as driver:
        driver.restart(app_with("0 9 * * *"))
        driver.advance(2 * HOUR_S)
        assert runs_of(driver) == ["2026-03-02T09:00:00+00:00"]
        # The timer of the former expression comes due, and does nothing.
        driver.crash(down_s=31 * DAY_S)
        assert runs_of(driver) == ["2026-04-02T09:00:00+00:00"]


def test_a_removed_cron_doesnt_keep_a_worker_from_its_start() -> None:
    with_cron, without = app_with("0 9 * * *"), App("calendar", broker="kafka://127.0.0.1:1")
    without.topic("runs", key_type=str, value_type=str)

    async def place(ctx: Context, order: str) -> None: ...

    for app in (with_cron, without):
        app.actor(app.topic("orders", key_type=str, value_type=str))(place)
    with driver_at(with_cron, 2026, 3, 2, 8) as driver:
        driver.restart(without)
        driver.advance(2 * HOUR_S)
        assert runs_of(driver) == []


def test_messages_from_elsewhere_set_no_second_timer() -> None:
    app = app_with("0 9 * * *")
    with driver_at(app, 2026, 3, 2, 8) as driver:
        for _ in range(3):
            driver.tell("report", next_key("report"), Tick())
        driver.advance(2 * HOUR_S)
        assert runs_of(driver) == ["2026-03-02T09:00:00+00:00"]


# --- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 0 31 2 *", r"cron report: '0 0 31 2 \*' is no cron expression, or there is no such date"),
        ("0 0 31 4,6 *", "there is no such date"),
        ("61 * * * *", "Bad minute"),
        ("* * * *", "an expression of five fields"),
        ("0 0 * * * *", "an expression of five fields"),
        ("@daily", "an expression of five fields"),
        (7, "an expression of five fields"),
        (",".join(["1"] * 150) + " * * * *", "more than 200 characters"),
    ],
)
def test_an_expression_without_a_date_is_refused(expression: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        app_with(expression)


def test_unknown_zones_and_ways_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="tz='Europe/Bärlin': it is the name of a time zone"):
        app_with("* * * * *", "Europe/Bärlin")
    with pytest.raises(ConfigurationError, match="missed='all': it is one of once, each, skip"):
        app_with("* * * * *", missed="all")  # type: ignore[arg-type]
    app = App("calendar", broker="kafka://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match=r"Write `async def report\(ctx: Context, at: datetime\)"):

        @app.cron("* * * * *")
        async def report(ctx: Context) -> None: ...  # type: ignore[type-var]


def test_its_topic_is_made_with_one_partition() -> None:
    app = app_with("* * * * *")
    assert app.made_topics == {"calendar--report-cron": 1}
