"""Tables of pandas, which is imported only when one is asked for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from salience.errors import SalienceError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(columns: Mapping[str, Sequence[Any]]) -> "DataFrame":
    """A pandas DataFrame with these columns."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise SalienceError("to_frame needs pandas; install it with `pip install pandas`") from error
    return DataFrame(dict(columns))
