"""Anthropic's Messages as an upstream: the plugin and its dialect."""

from plugins.anthropic.dialect import Anthropic, Messages

__all__ = ["Anthropic", "Messages"]
