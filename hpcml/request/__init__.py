"""What a person asks for: the table of options, and the request that they make."""
