"""Spark's errors while a job runs, told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from spark_replay.errors import ReadError
from spark_replay.session import first_line

_LONGEST = 400


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what Spark raises inside into a `ReadError` that names `what`."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise ReadError(f"Spark could not read {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if cause is None:
        return first_line(error)[:_LONGEST]
    texts = []
    while cause is not None:
        texts.append(first_line(ValueError(cause.getMessage() or cause.getClass().getName())))
        cause = cause.getCause()
    # the first says where (a file, an offset), the last why
    return ": ".join(dict.fromkeys([texts[0][:_LONGEST], texts[-1][:_LONGEST]]))
