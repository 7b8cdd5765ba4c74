"""The program `tests.programs.conversation` on the test's broker, with a model that takes a moment."""

import asyncio
from pathlib import Path

from actors import EffectCall
from tests.kafka.apps.quick import NAME, quick_app

PROGRAM = Path(__file__).parents[2] / "programs" / "conversation.py"
CHANGES = {
    'App("conversations", broker="kafka://127.0.0.1:9092")': "quick_app()",
    'app.topic("': f'app.topic("{NAME}-',
    'raise NotImplementedError("calls the model, with call.idempotency_key")': "return await reply(call, newest)",
}


async def reply(call: EffectCall, newest: list[str]) -> str:
    """Answer the last line."""
    await asyncio.sleep(0.02)
    return f"re {newest[-1]}"


code = PROGRAM.read_text()
for old, new in CHANGES.items():
    assert old in code
    code = code.replace(old, new)
names = {"__name__": __name__, "quick_app": quick_app, "reply": reply}
exec(compile(code, str(PROGRAM), "exec"), names)
app = names["app"]
