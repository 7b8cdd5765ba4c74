"""Commands around a deploy: `doctor`."""

from actors.cli.deploy.doctor import doctor as doctor
