"""Tests of the debate on attention as explanation: each asks one question of a model."""

from salience.audits.auditor import TESTS, Audit, audit
from salience.audits.finding import Finding, Measure

__all__ = ["TESTS", "Audit", "Finding", "Measure", "audit"]
