"""Read texts from files and data sets, streamed in shards that workers can read independently.

An invalid row is returned as ``Rejected`` with a reason, and reading continues. An unusable source, such as a missing
file or column, raises ``BadInput`` before any work starts.
"""

from salience.data.examples import Example, examples
from salience.data.rows import Reader, shards
from salience.data.shortcuts import Shortcut, planted
from salience.data.source import fingerprint, source
from salience.data.values import Rejected, Row, Shard, Source

__all__ = [
    "Example",
    "Reader",
    "Rejected",
    "Row",
    "Shard",
    "Shortcut",
    "Source",
    "examples",
    "fingerprint",
    "planted",
    "shards",
    "source",
]
