"""Evaluates explanations: methods by metrics, with confidence intervals, controls and a summary in words."""
