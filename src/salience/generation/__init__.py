"""Why these words: which parts of a prompt made each token of a language model's answer."""

from salience.core.prompts import Message, Passage, Prompt
from salience.generation.citing import context_cite
from salience.generation.dependence import ContextDependence, Cue, Dependent, context_dependence
from salience.generation.explaining import ANSWER_METHODS, explain_answer, explain_answers
from salience.generation.explanation import AnswerExplanation, AnswerTarget, Segment
from salience.generation.runs import AnswerRun, explain_answer_data, open_answers

__all__ = [
    "ANSWER_METHODS",
    "AnswerExplanation",
    "AnswerRun",
    "AnswerTarget",
    "ContextDependence",
    "Cue",
    "Dependent",
    "Message",
    "Passage",
    "Prompt",
    "Segment",
    "context_cite",
    "context_dependence",
    "explain_answer",
    "explain_answer_data",
    "explain_answers",
    "open_answers",
]
