"""`python -m longca`: the command line without the script on PATH, and without imports from the working folder."""

from longca.import_path import leave_working_folder

leave_working_folder()

from longca_bench.cli import main  # noqa: E402 - not from the working folder

if __name__ == "__main__":
    main()
