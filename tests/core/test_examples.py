"""The examples on the test driver. Each has a test on a real broker too."""

import random

from actors.testing import ActorTestDriver
from examples.bank_accounts import Account, Balance, Deposit, Transfer, outcomes
from examples.bank_accounts import app as bank
from examples.run_commands import RunCommand, commands, runs
from examples.run_commands import app as dispatcher
from examples.sessions import Visit, pages, visits
from examples.sessions import app as shop


def test_run_commands_runs_each_once():
    with ActorTestDriver(dispatcher, partitions=2) as driver:
        for number in (1, 2, 1, 3, 2):
            driver.send(commands, key=f"run-{number}", value=RunCommand(command="run", args=[str(number)]))
        driver.crash(keep_disk=False)
        driver.send(commands, key="run-1", value=RunCommand(command="run", args=["1"]))
        assert sorted(sent.key for sent in driver.outputs(runs)) == ["run-1", "run-2", "run-3"]


def test_a_repeat_after_the_time_to_live_runs_again():
    with ActorTestDriver(dispatcher) as driver:
        command = RunCommand(command="run", args=[])
        driver.send(commands, key="run", value=command)
        driver.advance(6 * 24 * 3600)
        driver.send(commands, key="run", value=command)
        assert len(driver.outputs(runs)) == 1
        driver.advance(25 * 3600)
        driver.send(commands, key="run", value=command)
        assert len(driver.outputs(runs)) == 1


def test_bank_accounts_keep_all_the_money():
    with ActorTestDriver(bank, partitions=3) as driver:
        names = [f"account-{number}" for number in range(6)]
        for name in names:
            driver.tell(Account, name, Deposit(100))
        order = random.Random(1)
        for number in range(60):
            sender, receiver = order.sample(names, 2)
            driver.tell(Account, sender, Transfer(f"t{number}", receiver, order.randint(1, 90)))
            if number == 30:
                driver.crash()
        found = [sent.value for sent in driver.outputs(outcomes)]
        assert sorted(one.transfer for one in found) == sorted(f"t{number}" for number in range(60))
        assert {one.outcome for one in found} == {"done", "refused"}
        balances = driver.items(Account)
        assert sum(balance.cents for balance in balances.values()) == 600
        assert all(balance.cents >= 0 for balance in balances.values())
        assert type(balances["account-0"]) is Balance


def test_sessions_give_each_visit_out_once():
    with ActorTestDriver(shop, partitions=2) as driver:
        for visitor, page in (("ada", "home"), ("bob", "home"), ("ada", "shoes")):
            driver.send(pages, key=visitor, value=page)
        driver.advance(1_200)
        driver.send(pages, key="ada", value="hats")
        driver.advance(700)
        driver.crash(keep_disk=False)
        driver.advance(1_900)
        driver.send(pages, key="ada", value="home")
        assert [(sent.key, sent.value) for sent in sorted(driver.outputs(visits), key=lambda sent: sent.key)] == [
            ("ada", Visit(["home", "shoes", "hats"])),
            ("bob", Visit(["home"])),
        ]
        driver.advance(2_000)
        assert [sent.value for sent in driver.outputs(visits)] == [Visit(["home"])]
