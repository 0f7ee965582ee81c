"""What is explained: one adapter per family of models, and what an adapter is made of."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from salience.core.executor import Executor
    from salience.core.text import Encoded
    from salience.core.types import Batch, EmbeddingEdit, Model, Output, Selection, Site
    from salience.models.bundled import sample, sample_file
    from salience.models.files import BUNDLED
    from salience.models.gates import Gates, load_gates
    from salience.models.heads import FittedHead
    from salience.models.loading import Checkpoint, knows, load, load_to_train, starts_from_nothing
    from salience.models.pooled import Pooled, PooledConfig, word_tokenizer
    from salience.models.rationale import Rationale
    from salience.models.seq2seq import Seq2Seq, Seq2SeqConfig, subword_tokenizer

__all__ = [
    "BUNDLED",
    "Batch",
    "Checkpoint",
    "EmbeddingEdit",
    "Encoded",
    "Executor",
    "FittedHead",
    "Gates",
    "Model",
    "Output",
    "Pooled",
    "PooledConfig",
    "Rationale",
    "Selection",
    "Seq2Seq",
    "Seq2SeqConfig",
    "Site",
    "knows",
    "load",
    "load_gates",
    "load_to_train",
    "sample",
    "sample_file",
    "starts_from_nothing",
    "subword_tokenizer",
    "word_tokenizer",
]

_HOMES = {
    "salience.core.executor": ("Executor",),
    "salience.core.text": ("Encoded",),
    "salience.core.types": ("Batch", "EmbeddingEdit", "Model", "Output", "Selection", "Site"),
    "salience.models.bundled": ("sample", "sample_file"),
    "salience.models.files": ("BUNDLED",),
    "salience.models.gates": ("Gates", "load_gates"),
    "salience.models.heads": ("FittedHead",),
    "salience.models.loading": ("Checkpoint", "knows", "load", "load_to_train", "starts_from_nothing"),
    "salience.models.pooled": ("Pooled", "PooledConfig", "word_tokenizer"),
    "salience.models.rationale": ("Rationale",),
    "salience.models.seq2seq": ("Seq2Seq", "Seq2SeqConfig", "subword_tokenizer"),
}


def __getattr__(name: str) -> Any:
    """Names are imported when first used, so that the files of a model can be checked without importing torch."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'salience.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
