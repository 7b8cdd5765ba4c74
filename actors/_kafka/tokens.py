"""Tokens of SASL OAUTHBEARER: a provider that fails or hangs counts as an outage and doesn't end the client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from actors._core.logs import error_text
from actors._core.outside import EXITS
from actors.runtime.cancellation import is_closed, running_task

PROVIDER = "sasl_oauth_token_provider"
TOKEN_S = 20.0
"""How long a provider may take."""


class NoTokenError(KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """The provider returned no token. The client tries to connect again, as to a broker that is away."""


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """The user's provider, with every error turned into one that the client handles.

    The client handles its own errors and `OSError`. Others end its background tasks, and a provider that never returns
    blocks all connections.
    """

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider

    async def token(self) -> str:
        """Return the provider's token.

        Raises:
            NoTokenError: it raised, or took longer than `TOKEN_S`.
        """
        running = running_task()
        try:
            async with asyncio.timeout(TOKEN_S):
                return str(await self._provider.token())
        except TimeoutError as error:
            raise NoTokenError(f"no token within {TOKEN_S:g} s") from error
        except (asyncio.CancelledError, *EXITS):
            raise
        except BaseException as error:
            if is_closed(error, running):
                raise
            raise NoTokenError(error_text(error)) from error

    def extensions(self) -> dict[str, str]:
        return dict(self._provider.extensions())


def is_provided(security: Mapping[str, Any]) -> bool:
    """Return whether aiokafka's arguments have a provider that it can use."""
    return isinstance(security.get(PROVIDER), AbstractTokenProvider)
