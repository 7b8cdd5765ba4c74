"""Commands around a deploy: `doctor`, `plan`, and the group `topics`."""

from actors.cli.deploy.doctor import doctor as doctor
from actors.cli.deploy.plan import plan as plan
from actors.cli.deploy.topics import topics as topics
