"""`faust -A APP asyncapi`: a document of the app's topics for other teams and for catalogues."""

from __future__ import annotations

import click

from actors.cli.session import Session, with_session
from actors.formats.schemas.asyncapi import document


@click.command("asyncapi")
@click.option("--title", default="", help="Of the document; the app's id when left out.")
@click.option("--version", default="1", show_default=True, help="Of the document.")
@with_session
def asyncapi(session: Session, title: str, version: str) -> None:
    """Print an AsyncAPI 3 document: topics, what their records are, and the actors that read them.

    It follows from the program: neither a broker nor a registry is asked.
    """
    session.say_json(document(session.app, title=title, version=version))
