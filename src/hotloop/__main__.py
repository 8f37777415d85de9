"""`python -m hotloop`: the `hotloop` command."""

from hotloop.cli.entry import main

main()
