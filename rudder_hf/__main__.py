"""`python -m rudder_hf`: the command line without the console script."""

from .cli.main import app

if __name__ == "__main__":
    app(prog_name="rudder")
