"""One file per paper: its protocol run here, with its published numbers beside ours where it has any."""
