"""A whole data set explained into a folder, by one process or many, resumable."""
