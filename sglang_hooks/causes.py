"""Why a life ended, where the engine does not say."""

GENERIC = "prefill gave the request up"
SIBLING_DIED = "another prefill rank died"
REFUSED = "prefill refused the request"

ABORTED = "Aborted by AbortReq."
"""As sglang records a client's abort."""

BAD_REQUEST = 400
CLIENT_CLOSED_REQUEST = 499
SERVER_ERROR = 500
UNAVAILABLE = 503

LIMIT = 1_000
"""Characters of a cause that travel."""


def shortened(cause: str) -> str:
    return (cause or GENERIC)[:LIMIT]
