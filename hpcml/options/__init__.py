"""All options of a run: their table, and what reads them: the command line, the script's lines and Python."""
