"""Hugging Face models as implementations of the Model protocol. Only this package imports transformers."""

from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.encoder_decoder import EncoderDecoder
from salience.models.huggingface.loading import load, load_to_train, wrap

__all__ = ["EncoderDecoder", "HuggingFace", "load", "load_to_train", "wrap"]
