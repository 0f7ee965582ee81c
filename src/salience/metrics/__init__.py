"""Scores in, one number per text out: how far an explanation can be believed."""
