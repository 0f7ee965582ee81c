"""What attention is good for: the role of every head, its importance, and whether important heads explain."""

from salience.audits.heads.importance import RankAgreement
from salience.audits.heads.pruning import Pruning, PruningStep
from salience.audits.heads.roles import ROLES, THRESHOLDS, Role
from salience.audits.heads.study import PARTS, Head, HeadStudy, Named, heads

__all__ = [
    "PARTS",
    "ROLES",
    "THRESHOLDS",
    "Head",
    "HeadStudy",
    "Named",
    "Pruning",
    "PruningStep",
    "RankAgreement",
    "Role",
    "heads",
]
