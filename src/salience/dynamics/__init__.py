"""How attention comes to be: attention and output relevance of texts, followed through training."""

from salience.dynamics.agreement import Agreement, accuracy_match, agreement, chance
from salience.dynamics.flow import Flow, two_tokens
from salience.dynamics.follower import Callbacks, Dynamics, follow
from salience.dynamics.recording import Followed, FollowedText, read_follow
from salience.dynamics.separation import Course, Order

__all__ = [
    "Agreement",
    "Callbacks",
    "Course",
    "Dynamics",
    "Flow",
    "Followed",
    "FollowedText",
    "Order",
    "accuracy_match",
    "agreement",
    "chance",
    "follow",
    "read_follow",
    "two_tokens",
]
