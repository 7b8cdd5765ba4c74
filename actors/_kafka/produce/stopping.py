"""Stops a producer in whatever state it is, and sends nothing of what it holds.

Every future that nobody waits for has its error taken out: asyncio would log it as never retrieved.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from actors._core.logs import escaping
from actors.runtime.cancellation import is_cancelled

logger = escaping(logging.getLogger(__name__))

CLOSE_S = 5.0


async def discard_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer in any state, without sending its buffered batches."""
    sender = producer._sender.sender_task
    if sender is not None and not sender.done():
        sender.cancel()
    discarded = KafkaError("the producer was discarded")
    drop_unsent(producer, discarded)
    producer._message_accumulator.fail_all(discarded)
    try:
        async with asyncio.timeout(CLOSE_S):
            await producer.stop()
    except Exception as error:
        # A request that its sender had under way meets what was dropped.
        logger.debug("a discarded producer said: %r", error)
    except asyncio.CancelledError:
        # Else it is the sender's.
        if is_cancelled():
            raise
    finally:
        producer._closed = True
    await producer.client.close()
    if sender is not None:
        looked_at(sender)
    for batch in producer._message_accumulator._pending_batches:
        looked_at(batch.future)
    transaction_error(producer)


def drop_unsent(producer: AIOKafkaProducer, error: Exception) -> None:
    """Fail all batches that a producer holds and isn't sending, and send none of them."""
    accumulator = producer._message_accumulator
    unsent = [batch for batches in accumulator._batches.values() for batch in batches]
    accumulator._batches.clear()
    # A batch that waits to be sent again isn't among these, and is removed from them when it fails.
    accumulator._pending_batches.update(unsent)
    for batch in unsent:
        batch.failure(error)
        looked_at(batch.future)
        looked_at(batch._drain_waiter)


def transaction_error(producer: AIOKafkaProducer) -> BaseException | None:
    """Return why a producer's transaction failed, from a future that nobody else waits for; None if it didn't."""
    manager = producer._txn_manager
    waiter = None if manager is None else manager._transaction_waiter
    if waiter is None or not waiter.done() or waiter.cancelled():
        return None
    error: BaseException | None = waiter.exception()
    return error


def looked_at(waiter: asyncio.Future[Any]) -> None:
    """Take out the error of a future, if it has one."""
    if waiter.done() and not waiter.cancelled():
        waiter.exception()
