"""Sinks: topics written to databases, files and services. A worker runs them beside its actors.

`actors.sinks.postgres`, `.parquet` and `.http` have targets, each with what has to be installed for it.
"""

from actors.sinks.batch import Batch, Record, Target
from actors.sinks.lookup import Lookup

__all__ = ["Batch", "Lookup", "Record", "Target"]
