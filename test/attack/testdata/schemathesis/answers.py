"""What is asked of every answer: that the server has no fault."""

import schemathesis

# It does not have that, cannot now, or has no room.
REFUSALS = (501, 503, 507)


@schemathesis.check
def no_fault(ctx, response, case):
    if response.status_code >= 500 and response.status_code not in REFUSALS:
        raise AssertionError(f"{response.status_code}: {response.text[:500]}")
