"""Small models shipped with the package, and a sample of labelled sentences."""

from importlib.resources import files
from pathlib import Path


def sample() -> list[str]:
    """Return the bundled sentences with their labels and rationales, one JSON object per line."""
    return sample_file().read_text("utf-8").splitlines()


def sample_file() -> Path:
    """Return the path of the sample, a data set like any other."""
    return Path(str(files("salience.models.bundled").joinpath("sample.jsonl")))
