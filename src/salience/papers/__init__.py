"""One module per paper: runs its protocol and compares the results with the published numbers, if any."""
