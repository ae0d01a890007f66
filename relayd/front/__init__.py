"""Where clients come in: aiohttp's door, and what its paths mean."""
