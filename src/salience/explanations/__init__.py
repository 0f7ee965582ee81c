"""Explaining texts, and importing explanations from other tools."""
