"""How attention comes to be: output relevance and attention through training."""
