"""``python -m nestling`` is the command line."""

from nestling.cli import main

if __name__ == "__main__":
    main()
