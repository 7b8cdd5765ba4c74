"""The schemas that an app declares, beside those of a registry, and as documents."""
