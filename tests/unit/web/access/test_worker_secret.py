"""The secret that an app's workers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors import App
from actors._faust.settings import secrets
from actors._faust.settings.secrets import worker_keys
from actors.errors import ConfigurationError
from tests.unit.web.web_part import ADMIN, OLD_READ, READ

SECRET, OTHER = "a-secret-of-the-workers-0123456789", "another-secret-of-workers-0123456789"


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "SCRYPT_COST", 2)
    secrets._stretched.cache_clear()


def worker_key(app: App, purpose: bytes) -> bytes | None:
    """The key that signs, None if there is none."""
    return next(iter(worker_keys(app, purpose)), None)


def key(name: str = "shop", purpose: bytes = b"control", **options: Any) -> bytes | None:
    return worker_key(App(name, broker="kafka://127.0.0.1:1", **options), purpose)


@pytest.mark.parametrize(
    "options", [{"worker_secret": SECRET}, {"admin_tokens": [ADMIN]}, {"query_tokens": [READ]}], ids=str
)
def test_workers_with_the_same_settings_have_the_same_key(options: dict[str, Any]) -> None:
    found = key(**options)
    assert found is not None
    assert len(found) == 32
    assert found == key(**options)
    assert found not in (key("other", **options), key(purpose=b"hop", **options))


def test_without_a_secret_and_tokens_there_is_no_key() -> None:
    assert key() is None


def test_the_setting_goes_before_tokens_and_admin_tokens_before_those_of_readers() -> None:
    everything = {"worker_secret": SECRET, "admin_tokens": [ADMIN], "query_tokens": [READ]}
    assert key(**everything) == key(worker_secret=SECRET)
    del everything["worker_secret"]
    assert key(**everything) == key(admin_tokens=[ADMIN]) != key(query_tokens=[READ])


def test_tokens_are_stretched_with_the_apps_id_as_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap = key(admin_tokens=[ADMIN])
    monkeypatch.undo()
    secrets._stretched.cache_clear()
    assert secrets.SCRYPT_COST >= 2**14
    assert key(admin_tokens=[ADMIN]) != cheap


def test_secrets_are_replaced_one_by_one() -> None:
    for setting, old, new in (("worker_secret", SECRET, OTHER), ("query_tokens", OLD_READ, READ)):
        app = App("shop", broker="kafka://127.0.0.1:1", **{setting: [old, new]})
        assert worker_keys(app, b"control") == (key(**{setting: [old]}), key(**{setting: [new]}))
        assert worker_key(app, b"control") == key(**{setting: [old]})


def test_it_comes_from_a_file_or_the_environment_and_a_new_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    app = App("shop", broker="kafka://127.0.0.1:1", worker_secret=file)
    assert worker_key(app, b"control") == key(worker_secret=SECRET)
    file.write_text(f"{OTHER}\n{SECRET}\n")
    app.extensions["web"].files.look()
    app.extensions["web"].files.look()
    assert worker_keys(app, b"control") == (key(worker_secret=OTHER), key(worker_secret=SECRET))
    # One that can't be used changes nothing.
    file.write_text("short")
    app.extensions["web"].files.look()
    app.extensions["web"].files.look()
    assert worker_key(app, b"control") == key(worker_secret=OTHER)
    monkeypatch.setenv("WORKER_SECRET", SECRET)
    assert key() == key(worker_secret=SECRET)
    file.write_text(OTHER)
    monkeypatch.setenv("WORKER_SECRET_FILE", str(file))
    assert key() == key(worker_secret=OTHER)


def test_a_key_follows_a_file_with_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(READ)
    app = App("shop", broker="kafka://127.0.0.1:1", query_tokens=file)
    before = worker_key(app, b"control")
    file.write_text(OLD_READ)
    app.extensions["web"].files.look()
    app.extensions["web"].files.look()
    assert before == key(query_tokens=[READ]) != worker_key(app, b"control") == key(query_tokens=[OLD_READ])


@pytest.mark.parametrize("given", ["short", "x" * 31, "with a space " * 4, "ä" * 40, "", Path("/nowhere/secret")])
def test_a_secret_that_cant_be_used_is_refused_and_not_shown(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="worker_secret") as refusal:
        key(worker_secret=given)
    assert not isinstance(given, str) or not given or given not in str(refusal.value)


def test_a_secret_that_is_a_token_too_is_refused() -> None:
    token = "a-token-that-is-long-enough-to-be-both"
    with pytest.raises(ConfigurationError, match="worker_secret is one of the tokens"):
        key(worker_secret=token, query_tokens=[token])


def test_no_secret_is_shown_by_repr() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1", worker_secret=SECRET)
    assert SECRET not in repr(app.actor_options)
