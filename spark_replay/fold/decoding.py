"""Keys and values as JSON text, decoded by the codecs of the user's app.

That needs Python, row by row, and the app's module where Spark's tasks run; so it is done for the finished state only,
and when it is asked for. A plain function, not one on Arrow batches: Spark wants pandas on every executor for those.

The app is whatever has `stores`, a mapping by name, and `decoder(store)`, whose result has `changelog`, the store's
topic, and `key_json(raw)`, `row_json(raw)` and `value_json(raw, raw_key)`, which give the JSON text of bytes or raise
`ValueError`; `row_json` gives None where a key has no row.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_replay.apps import THERE, load_app
from spark_replay.errors import WrongTopicError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


DECODED = "key_json string, row_json string, value_json string"
"""The schema of the columns that an app adds."""


@dataclass(frozen=True, slots=True)
class Codecs:
    """The codecs of a store of an app. Spark's tasks import the app by its module's name.

    Attributes:
        app: `module`, or `module:attribute`.
        store: The store's name.
        folder: Where this process found the module; looked into by tasks that have it too.
    """

    app: str
    store: str
    folder: str

    @classmethod
    def of(cls, app: str, changelog: str) -> Codecs:
        """Find the store of a changelog.

        Raises:
            AppError: The app can't be imported.
            WrongTopicError: The changelog is none of its stores'.
        """
        loaded = load_app(app)
        changelogs = {loaded.decoder(name).changelog: name for name in loaded.stores}
        if changelog not in changelogs:
            names = ", ".join(sorted(changelogs)) or "none"
            raise WrongTopicError(f"{changelog} isn't a changelog of the app {app}, which has: {names}")
        return cls(app, changelogs[changelog], _folder_of(app))


def decoded(state: DataFrame, codecs: Codecs) -> DataFrame:
    """Add `key_json`, `row_json` and `value_json`, JSON text, to rows with `key` and `value`.

    They are null where bytes don't decode, and `row_json` where the store has no rows below its keys.
    """
    from pyspark.sql import functions as F  # noqa: N812

    def decode(key: bytes | None, value: bytes | None) -> tuple[str | None, ...]:
        decoder = _decoder(codecs)
        texts = _lenient(decoder.key_json, key), _lenient(decoder.row_json, key)
        return *texts, _lenient(decoder.value_json, value, key)

    # by Arrow, PySpark's default from 4.1 on, it would need pandas
    both = F.udf(decode, DECODED, useArrow=False)
    return state.withColumn("decoded", both("key", "value")).select(*state.columns, "decoded.*")


@functools.cache
def _decoder(codecs: Codecs) -> Any:
    """Return the store's decoder, in whatever process this is; `AppError` if the app can't be imported here."""
    if codecs.folder not in sys.path and Path(codecs.folder).is_dir():
        sys.path.append(codecs.folder)
    return load_app(codecs.app, where=THERE).decoder(codecs.store)


def _lenient(decode: Callable[..., str | None], *raws: bytes | None) -> str | None:
    """Return the text of the first of these; None if it is null or doesn't decode."""
    try:
        return None if raws[0] is None else decode(*(None if raw is None else bytes(raw) for raw in raws))
    except ValueError:
        return None


def _folder_of(app: str) -> str:
    name = app.partition(":")[0]
    file = getattr(sys.modules[name], "__file__", None)
    if file is None:
        return ""
    # a package's file is its __init__.py, one folder deeper
    depth = name.count(".") + (1 if Path(file).name == "__init__.py" else 0)
    return str(Path(file).absolute().parents[depth])
