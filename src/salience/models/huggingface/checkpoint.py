"""Checks of a checkpoint before and after transformers loads it; local folders and hub models alike."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME
from transformers.utils.hub import cached_file

from salience.errors import BadModel
from salience.models.files import check_kernel, check_shards


def check_files(source: str | Path, *, revision: str | None, trust_remote_code: bool) -> None:
    """Raise if loading would run code or read files that were not asked for."""
    if not trust_remote_code:
        raw: Any = PreTrainedConfig.get_config_dict(source, revision=revision)[0]
        check_kernel(raw, source)
    index = cached_file(source, SAFE_WEIGHTS_INDEX_NAME, revision=revision, _raise_exceptions_for_missing_entries=False)
    if index is not None:
        check_shards(Path(index))


def check_layers(module: PreTrainedModel, unexpected: Iterable[str], name: str | Path) -> None:
    """Raise if the weights hold more layers than the configuration: the model would be cut short without a word.

    ``unexpected`` are the weights that the module has no place for. Those of a layer have the number of a block in
    their name, as in ``encoder.layer.2.output.weight``, and the module has a block 0 of the same name.
    """
    known = set(module.state_dict())
    for key in sorted(unexpected):
        for number in re.finditer(r"(?<=\.)\d+(?=\.)", key):
            stack = key[: number.start()]
            if any(k.startswith(f"{stack}0.") for k in known) and not any(
                k.startswith(f"{stack}{number[0]}.") for k in known
            ):
                built = len({k[len(stack) :].partition(".")[0] for k in known if k.startswith(stack)})
                raise BadModel(
                    f"{name}: config.json sets the number of layers to {built}, but the weights hold more ({key}); "
                    "correct config.json, or save the model again with save_pretrained"
                )
