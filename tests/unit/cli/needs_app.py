"""An app for commands that need no broker."""

from tests.kafka.apps.needs_app import make

app = make("needs", ["store"], broker="kafka://127.0.0.1:1")
