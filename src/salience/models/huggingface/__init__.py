"""Hugging Face models behind the Model protocol. No file outside this folder imports transformers."""

from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.loading import load, load_to_train, wrap

__all__ = ["HuggingFace", "load", "load_to_train", "wrap"]
