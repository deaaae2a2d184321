"""`python -m gateway` runs the command `gateway`."""

from gateway.cli import main

main()
