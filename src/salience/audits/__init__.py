"""Tests of the debate on attention as explanation: each asks one question of a model."""

from salience.audits.auditor import RETRAINED, TESTS, Audit, Callbacks, audit
from salience.audits.finding import Finding, Measure

__all__ = ["RETRAINED", "TESTS", "Audit", "Callbacks", "Finding", "Measure", "audit"]
