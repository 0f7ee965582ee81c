"""Texts out of files and data sets: streamed, and cut into shards that any worker can read by itself.

A row that cannot be used is handed on as ``Rejected`` with a reason in words; it stops nothing. A source that cannot be
used at all (no such file, no such column) is a ``BadInput`` before any work begins.
"""

from salience.data.rows import Reader, shards
from salience.data.source import fingerprint, source
from salience.data.values import Rejected, Row, Shard, Source

__all__ = ["Reader", "Rejected", "Row", "Shard", "Source", "fingerprint", "shards", "source"]
