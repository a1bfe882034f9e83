"""What a person asks for: the options, and the request that they make."""
