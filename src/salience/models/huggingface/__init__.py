"""Hugging Face models behind the Model protocol. No file outside this folder imports transformers."""

from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.loading import load, wrap

__all__ = ["HuggingFace", "load", "wrap"]
