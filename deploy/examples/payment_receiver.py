"""Credits accounts for payments by Stripe, each event once. An example to copy: Sluicegate itself knows no payment provider.

Make Checkout Sessions with the account's id as `client_reference_id`, and let Stripe send `checkout.session.completed` and
`checkout.session.async_payment_succeeded` here. After an answer other than 2xx Stripe sends the event again, for three days.

Environment: STRIPE_SECRET (whsec_...), GATEWAY_API (http://127.0.0.1:9090), GATEWAY_API_TOKEN (a management token with the scope
`money` alone), PORT.
"""

import hmac
import json
import os
import re
import time
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

TOLERANCE_S = 300
PAID = ("checkout.session.completed", "checkout.session.async_payment_succeeded")
CURRENCY, MICROS_PER_UNIT = "usd", 10_000  # Stripe counts cents: of yen, for example, it would be 1_000_000
API = web.AppKey("API", aiohttp.ClientSession)


def is_signed(header: str, body: bytes, secret: str, now: float) -> bool:
    """Return whether Stripe signed this body with this secret, and not long ago: an older one may be sent by who recorded it."""
    fields = [field.strip().partition("=")[::2] for field in header.split(",")]
    times = [value for name, value in fields if name == "t"]
    if len(times) != 1 or not re.fullmatch(r"[0-9]{1,12}", times[0]) or abs(now - int(times[0])) > TOLERANCE_S:
        return False
    expected = hmac.new(secret.encode(), f"{times[0]}.".encode() + body, "sha256").hexdigest().encode()
    signatures = [
        value.encode(errors="replace") for name, value in fields if name == "v1"
    ]  # several while a secret is replaced
    return any(hmac.compare_digest(expected, signature) for signature in signatures)


async def receive(request: web.Request) -> web.Response:
    """Credit the account of a payment. 2xx: it is booked, now or before, or there is nothing to book."""
    body = await request.read()
    if not is_signed(request.headers.get("Stripe-Signature", ""), body, os.environ["STRIPE_SECRET"], time.time()):
        return web.Response(status=400, text="The signature is not Stripe's, or too old.")
    event = json.loads(body)
    paid = event["data"]["object"]
    if event["type"] not in PAID or paid["payment_status"] != "paid":
        return web.Response(text="Nothing to book.")
    account = str(paid["client_reference_id"])
    if paid["currency"] != CURRENCY or not re.fullmatch("[a-z0-9]{3,32}", account):
        return web.Response(status=422, text="Book this by hand: it is in another currency, or names no account.")
    credit = {"transaction": event["id"], "amount_micros": paid["amount_total"] * MICROS_PER_UNIT}
    try:
        async with request.app[API].post(f"/api/v1/accounts/{account}/credits", json=credit) as answer:
            if answer.status == 200:
                return web.Response(text="Booked.")
            refusal = await answer.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        answer, refusal = None, type(error).__name__
    print(f"{event['id']} for {account} is not booked: {refusal}", flush=True)
    # No such account, a closed one, or booked before with another amount.
    lasts = answer is not None and answer.status in (400, 404, 409)
    return web.Response(status=422 if lasts else 503, text="Not booked.")


async def client(app: web.Application) -> AsyncIterator[None]:
    """Keep connections to the gateway's API open."""
    headers = {"Authorization": f"Bearer {os.environ['GATEWAY_API_TOKEN']}"}
    timeout = aiohttp.ClientTimeout(total=8)
    async with aiohttp.ClientSession(os.environ["GATEWAY_API"], headers=headers, timeout=timeout) as app[API]:
        yield


if __name__ == "__main__":
    application = web.Application(client_max_size=256 * 1024)
    application.cleanup_ctx.append(client)
    application.router.add_post("/stripe", receive)
    web.run_app(application, host="127.0.0.1", port=int(os.environ.get("PORT", "8080")), access_log=None, print=None)
