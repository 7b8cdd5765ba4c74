"""Fan-out and fan-in: the texts of a batch are counted side by side, and the batch sends their sum."""

import asyncio

from actors import App, Context

app = App("words", broker="kafka://127.0.0.1:9092")
texts = app.topic("texts", key_type=str, value_type=str)
batches = app.topic("batches", key_type=str, value_type=list[str])
sums = app.topic("sums", key_type=str, value_type=int)


@app.actor(texts, concurrency=100)
async def count(ctx: Context, text: str) -> int:
    return len(text.split())


@app.actor(batches, concurrency=100)
async def add_up(ctx: Context, batch: list[str]) -> None:
    counts = await asyncio.gather(*(count.at(f"{ctx.key}/{part}")(text) for part, text in enumerate(batch)))
    ctx.send(sums, key=ctx.key, value=sum(counts))
