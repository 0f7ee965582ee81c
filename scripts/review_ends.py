#!/usr/bin/env python
"""Write the last words of long reviews, on which classifiers of single sentences can be tested.

python scripts/review_ends.py imdb/test.jsonl.gz --out imdb-ends.jsonl --texts 400
python scripts/review_ends.py eraser_movies/test.jsonl.gz --out movies-ends.jsonl
"""

import argparse
import json
from pathlib import Path

from salience.data import source
from salience.data.examples import examples, sampled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="reviews with the columns text, label and id")
    parser.add_argument("--words", type=int, default=100, help="words of each review")
    parser.add_argument("--texts", type=int, help="reviews, at even distances; default: all")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    reviews = examples(source(asked.data, label="label", id="id"))
    lines = (
        {"text": " ".join(str(e.text).split()[-asked.words :]), "label": e.label, "id": e.id}
        for e in sampled(reviews, asked.texts or len(reviews))
    )
    asked.out.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
