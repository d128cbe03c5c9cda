"""`python -m crossmesh`: the command `crossmesh` by the interpreter that is named."""

from crossmesh.command.main import main

if __name__ == "__main__":
    main()
