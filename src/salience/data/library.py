"""Data sets of the datasets library."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from salience.errors import BadInput, unknown


def saved(folder: str) -> bool:
    """Whether the folder was written by save_to_disk."""
    return any(os.path.isfile(os.path.join(folder, file)) for file in ("state.json", "dataset_dict.json"))


def one_split(name: str, subset: str | None, split: str | None) -> str | None:
    """The split that is read: the one that is named, or the only one there is."""
    if split is not None:
        return split
    found: Any = load(name, subset, None)
    if not isinstance(found, dict):
        return None
    splits: list[str] = list(found)
    if len(splits) > 1:
        raise BadInput(f"{name} has several splits: choose one with split, of {', '.join(splits)}")
    return splits[0]


def load(name: str, subset: str | None, split: str | None) -> Any:
    """A data set, or a dict of splits if none is named."""
    import datasets

    try:
        with _quiet(datasets):
            if not saved(name):
                return datasets.load_dataset(name, subset, split=split)
            found: Any = datasets.load_from_disk(name)
    # The library raises whatever its readers and the network raise.
    except Exception as error:
        said = short(" ".join(str(error).split()) or type(error).__name__, 300)
        if os.path.isdir(name):
            raise BadInput(f"the datasets library cannot load {name}: {said}") from error
        raise BadInput(f"{no_file(name)}, and the datasets library cannot load it by that name: {said}") from error
    return _part(name, found, split)


def _part(name: str, found: Any, split: str | None) -> Any:
    """A split of what was saved to disk."""
    if split is None:
        return found
    splits: list[str] = list(found) if isinstance(found, dict) else []
    if split not in splits:
        raise BadInput(unknown(split, splits, f"split of {name}") if splits else f"{name} has no splits; leave it out")
    return found[split]


@contextmanager
def _quiet(datasets: Any) -> Generator[None]:
    """Without the library's progress bars."""
    bars = datasets.is_progress_bar_enabled()
    try:
        datasets.disable_progress_bars()
        yield
    finally:
        if bars:
            datasets.enable_progress_bars()


def no_file(name: str) -> str:
    """What to say of a name under which nothing lies."""
    folder, file = os.path.split(os.path.expanduser(name))
    there = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    near = get_close_matches(file, sorted(there), n=1)
    hint = f"; did you mean {os.path.join(folder, near[0])!r}?" if near else ""
    return f"there is no file or folder {name!r}{hint}"


def short(text: str, length: int) -> str:
    """No longer than so many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"
