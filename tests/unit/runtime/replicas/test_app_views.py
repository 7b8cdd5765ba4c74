"""An app's views on the test driver: states of class actors, stores, and the example of a shared configuration."""

import pytest

from actors import App, UsageError
from actors.testing import ActorTestDriver
from examples.shared_config import Change, Job, Limits, Printer, answers, jobs, limits
from examples.shared_config import app as example


def test_handlers_read_views_of_actors_and_stores():
    app = App("sharing", broker="kafka://127.0.0.1:1")
    doubles = app.topic("doubles", key_type=str, value_type=str)
    kept = app.store("kept", value_type=int)
    view = app.view(kept)

    @app.actor(doubles, stores=[kept])
    async def double(ctx, _):
        kept.set(ctx.key, 2 * view.get(ctx.key, 5))

    seen = []
    view.on_change(lambda *change: seen.append(change))
    with ActorTestDriver(app, partitions=2) as driver:
        for _ in range(3):
            driver.send(doubles, key="k", value="go")
        driver.crash()
        assert dict(view.items()) == {"k": 40}
    assert seen == [("k", None, 10), ("k", 10, 20), ("k", 20, 40)]


def test_what_has_no_view():
    app = App("sharing", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("in", key_type=str, value_type=str))
    def stateless(ctx, value): ...

    with pytest.raises(UsageError, match="has no state of its own"):
        app.view(stateless)
    with pytest.raises(UsageError, match="is no actor of this app"):
        app.view("nobody")


def test_the_example_refuses_what_is_over_the_limit():
    with ActorTestDriver(example, partitions=2) as driver:
        driver.send(jobs, key="1", value=Job("p7", 3))
        assert driver.ask(Printer, "p7", Change(pages=10)) == Limits(10)
        driver.send(jobs, key="2", value=Job("p7", 10))
        driver.send(jobs, key="3", value=Job("p7", 11))
        assert driver.ask(Printer, "p7", Change(color=True)) == Limits(10, True)
        assert limits.get("p7") == Limits(10, True)
        driver.crash(keep_disk=False)
        driver.send(jobs, key="4", value=Job("p7", 11))
        found = {sent.key: sent.value for sent in driver.outputs(answers)}
        assert found == {"1": "no printer p7", "2": "printed", "3": "more than 10 pages", "4": "more than 10 pages"}
