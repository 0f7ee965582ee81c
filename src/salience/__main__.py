"""``python -m salience`` is the command ``salience``."""

from salience.cli import main

if __name__ == "__main__":
    main()
