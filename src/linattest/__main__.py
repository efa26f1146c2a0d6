"""``python -m linattest`` runs the command line."""

from linattest.verify.cli import main

if __name__ == "__main__":
    main()
