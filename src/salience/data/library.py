"""Data sets of the datasets library."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from salience.errors import BadInput, unknown


def saved(folder: str) -> bool:
    """Whether the folder was written by ``save_to_disk``."""
    return any(os.path.isfile(os.path.join(folder, file)) for file in ("state.json", "dataset_dict.json"))


def one_split(name: str, subset: str | None, split: str | None) -> str | None:
    """The split to read: the named one, or the only one."""
    if split is not None:
        return split
    loaded: Any = load(name, subset, None)
    if not isinstance(loaded, dict):
        return None
    splits: list[str] = list(loaded)
    if len(splits) > 1:
        raise BadInput(f"{name} has several splits; choose one with split: {', '.join(splits)}")
    return splits[0]


def load(name: str, subset: str | None, split: str | None) -> Any:
    """Load a data set, or a dict of its splits if none is named."""
    import datasets

    try:
        with _quiet(datasets):
            if not saved(name):
                return datasets.load_dataset(name, subset, split=split)
            loaded: Any = datasets.load_from_disk(name)
    # The library raises whatever its readers and the network raise.
    except Exception as error:
        reason = short(" ".join(str(error).split()) or type(error).__name__, 300)
        if os.path.isdir(name):
            raise BadInput(f"the datasets library cannot load {name}: {reason}") from error
        raise BadInput(f"{no_file(name)}, and the datasets library cannot load it by that name: {reason}") from error
    return _select_split(name, loaded, split)


def _select_split(name: str, loaded: Any, split: str | None) -> Any:
    """The named split of a data set that was saved to disk."""
    if split is None:
        return loaded
    splits: list[str] = list(loaded) if isinstance(loaded, dict) else []
    if split not in splits:
        raise BadInput(unknown(split, splits, "split", name) if splits else f"{name} has no splits; leave out split")
    return loaded[split]


@contextmanager
def _quiet(datasets: Any) -> Generator[None]:
    """Hide the library's progress bars."""
    bars = datasets.is_progress_bar_enabled()
    try:
        datasets.disable_progress_bars()
        yield
    finally:
        if bars:
            datasets.enable_progress_bars()


def no_file(name: str) -> str:
    """The error message for a missing file, with the closest existing name."""
    folder, file = os.path.split(os.path.expanduser(name))
    files = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    near = get_close_matches(file, sorted(files), n=1)
    hint = f"; did you mean {os.path.join(folder, near[0])!r}?" if near else ""
    return f"there is no file or folder {name!r}{hint}"


def short(text: str, length: int) -> str:
    """Shorten a text to at most ``length`` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"
