"""Commands around a deploy: `asyncapi`, `doctor`, `plan`, and the groups `topics` and `schemas`."""

from actors.cli.deploy.asyncapi import asyncapi as asyncapi
from actors.cli.deploy.doctor import doctor as doctor
from actors.cli.deploy.plan import plan as plan
from actors.cli.deploy.schemas import schemas as schemas
from actors.cli.deploy.topics import topics as topics
