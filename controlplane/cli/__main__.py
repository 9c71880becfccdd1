"""`python -m controlplane.cli`: the same as the command `tidegate`."""

from controlplane.cli import main

if __name__ == "__main__":
    main()
