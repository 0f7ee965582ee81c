"""Why these words: which words of a source text made each word of the answer."""
