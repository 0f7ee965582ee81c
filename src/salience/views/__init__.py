"""Explanations made visible: in the terminal, as HTML, as pictures."""
