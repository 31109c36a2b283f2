"""`python -m longca`: the command line without the script on PATH."""

from longca_bench.cli import main

if __name__ == "__main__":
    main()
