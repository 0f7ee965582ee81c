"""Models whose attention is an explanation by construction, or is not one."""

import torch

from salience.models.pooled import Pooled, PooledConfig, word_tokenizer

TEXTS = (
    "the plot is good and the cast is there",
    "a film so bad that we left",
    "it was a good one",
    "what a bad and long story this is",
    "we saw it and it was good",
)


def decisive(scale: float = 5.0) -> Pooled:
    """Only "good" and "bad" have a vector, and nearly all attention is on them: take it away, and nothing is left."""
    model = _model()
    with torch.no_grad():
        for word, sign in (("good", 1.0), ("bad", -1.0)):
            model.module.words.weight[model.tokenizer.token_to_id(word), 0] = sign
            model.module.words.weight[model.tokenizer.token_to_id(word), 1] = 1.0
        model.module.classifier.weight.copy_(scale * torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model.module.query.weight.copy_(torch.tensor([[0.0, 12.0]]))
    return model


def indifferent() -> Pooled:
    """Every word has the same vector, so that attention has no say, whatever it is."""
    model = _model()
    with torch.no_grad():
        model.module.words.weight[1:] = torch.tensor([1.0, 0.5])
        model.module.classifier.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    return model


def _model() -> Pooled:
    tokenizer = word_tokenizer(TEXTS, 100)
    config = PooledConfig(("no", "yes"), tokenizer.get_vocab_size(), "embedding", embedding=2, scoring="dot")
    model = Pooled.new(config, tokenizer, name="known")
    for parameter in model.module.parameters():
        torch.nn.init.zeros_(parameter)
    return model
