"""Why these words: which words of a source text made each word of the answer."""

from salience.generation.explaining import AnswerExplanation, AnswerTarget, explain_answer

__all__ = ["AnswerExplanation", "AnswerTarget", "explain_answer"]
