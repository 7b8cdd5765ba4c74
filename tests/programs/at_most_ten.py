"""At most ten renders run at a time, over all workers."""

from actors import App, Context, EffectCall

app = App("renders", broker="kafka://127.0.0.1:9092")
images = app.topic("images", key_type=str, value_type=str)


@app.effect(limit=10)
async def render(call: EffectCall, image: str) -> None:
    print(f"renders {image} as {call.idempotency_key}")


@app.actor(images, effects=[render])
async def draw(ctx: Context, image: str) -> None:
    ctx.effect(render, image)
