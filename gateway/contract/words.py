"""What a scenario found, in words."""

from __future__ import annotations

from gateway.chain.failures import describe_error, error_text, origin_of
from gateway.chain.hooks import place_of_hook
from gateway.contract.contained import Ended
from gateway.contract.endings import Ending
from gateway.plugin import Plugin


def raised(hook: str, error: BaseException, ending: Ending) -> str:
    """Return what a hook raised, with its place, and in which ending."""
    at = error.at if isinstance(error, Ended) else origin_of(error).get("at", "")
    fact = error.args[0] if isinstance(error, KeyError) and error.args else None
    cure = f"; put {fact.__name__} into `requires`, or use `exchange.get`" if isinstance(fact, type) else ""
    if isinstance(error, AttributeError) and "'coroutine' object" in str(error):
        cure = "; write `await` before the call that returns it"
    lost = ending.lost_from
    when = f"({ending.name})" if lost is None else f"where replies were lost (from wait {lost + 1} on)"
    return f"`{hook}` {told(error)} {when}" + (f" at {at}" if at else "") + cure


def told(error: BaseException) -> str:
    """Return how a hook ended, to continue its name."""
    return str(error) if isinstance(error, Ended) else f"raised {error_text(error)}"


def failed(hook: str, error: BaseException) -> str:
    """Return how a function of a plugin ended, with its place. `hook` is its name where the error does not know it."""
    if not isinstance(error, Ended):
        return f"`{hook}` raised {describe_error(error)}"
    return f"`{error.function or hook}` {error}" + (f" ({error.at})" if error.at else "")


def in_vain(plugin: Plugin, hook: str, returned: object) -> list[str]:
    """Return what is wrong with a hook that returns something, in words."""
    if returned is None:
        return []
    return [f"`{hook}` returns {an(returned)}, which is ignored: return nothing{place_of_hook(type(plugin), hook)}"]


def an(value: object) -> str:
    """Return the name of a value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
