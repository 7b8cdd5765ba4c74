"""`python -m spark_replay`."""

from spark_replay.cli import main

main(prog_name="python -m spark_replay")
