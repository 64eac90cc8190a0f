"""Why a life ended, where the engine does not say."""

GENERIC = "prefill gave the request up"
SIBLING_DIED = "another prefill rank died"
REFUSED = "prefill refused the request"

LIMIT = 1_000
"""Characters of a cause that travel."""


def shortened(cause: str) -> str:
    return (cause or GENERIC)[:LIMIT]
