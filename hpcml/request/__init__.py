"""What a person asks for: the table of options, and the request that they make."""

from __future__ import annotations

from hpcml.request.reading import from_keywords as from_keywords
