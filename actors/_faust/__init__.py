"""How `actors` lives inside a Faust app: the only part of it that imports Faust."""
