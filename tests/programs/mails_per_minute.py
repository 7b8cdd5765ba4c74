"""Each tenant's mails go out at 100 a minute at the most, over all workers."""

from actors import App, Context, EffectCall

app = App("mails", broker="kafka://127.0.0.1:9092")
mails = app.topic("mails", key_type=str, value_type=dict[str, str])


@app.effect(rate="100/m", per=lambda mail: mail["tenant"])
async def send(call: EffectCall, mail: dict[str, str]) -> None:
    print(f"sends {mail['text']} as {call.idempotency_key}")


@app.actor(mails, effects=[send])
async def mail_out(ctx: Context, mail: dict[str, str]) -> None:
    ctx.effect(send, mail)
