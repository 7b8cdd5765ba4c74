"""A conversation: a model answers each line of a person from the newest twenty, and all lines are kept."""

from actors import App, Context, EffectCall

app = App("conversations", broker="kafka://127.0.0.1:9092")
questions = app.topic("questions", key_type=str, value_type=str)
answers = app.topic("answers", key_type=str, value_type=str)
lines = app.list_store("lines", key_type=str, value_type=str)


@app.effect(attempts=0)
async def ask_model(call: EffectCall, newest: list[str]) -> str:
    raise NotImplementedError("calls the model, with call.idempotency_key")


@app.actor(questions, stores=[lines], effects=[ask_model])
async def ask(ctx: Context, text: str) -> None:
    lines.at(ctx.key).append(text)
    ctx.effect(ask_model, lines.at(ctx.key)[-20:], then=answer)


@ask.timer
async def answer(ctx: Context, text: str) -> None:
    lines.at(ctx.key).append(text)
    ctx.send(answers, key=ctx.key, value=text)


@app.query(ask)
def page(ctx: Context, start: int = -20) -> list[str]:
    return lines.at(ctx.key)[start:]
