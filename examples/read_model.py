"""Where is my parcel? A topic that other programs read (`faust -A examples.read_model worker`).

Every parcel is an actor that counts its scans. Each commit also writes its state changes to the topic `parcel-status`,
in the same transaction: a JSON object for each parcel on its way, and a tombstone when it has arrived. Readers need
neither this app nor this framework. With the framework, a view keeps the whole topic in their process:
`python -m examples.read_model` prints it, and then each change.
"""

import asyncio
import os

import msgspec

from actors import Actor, App, View, receive

BROKER = os.environ.get("KAFKA_URL", "kafka://127.0.0.1:9092")

app = App("parcels", broker=BROKER)


class Status(msgspec.Struct):
    """The status of a parcel."""

    place: str = ""
    scans: int = 0


class Scan(msgspec.Struct):
    """A parcel was seen."""

    place: str
    has_arrived: bool = False


scans = app.topic("parcel-scans", key_type=str, value_type=Scan)
statuses = app.topic("parcel-status", key_type=str, value_type=Status)


@app.actor(scans, publish=statuses)
class Parcel(Actor[Status]):
    """One parcel."""

    @receive
    async def see(self, scan: Scan) -> None:
        """Note where it is."""
        if scan.has_arrived:
            self.forget()
            return
        self.state.place = scan.place
        self.state.scans += 1


async def main() -> None:
    """Show what readers see."""
    view: View[str, Status] = View("parcel-status", broker=BROKER, value_type=Status)
    async with view:
        for parcel, status in view.items():
            print(parcel, status.place, status.scans)
        view.on_change(lambda parcel, _, status: print(parcel, status.place if status else "arrived"))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
