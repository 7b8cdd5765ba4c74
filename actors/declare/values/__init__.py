"""Values as bytes and as JSON: codecs, their shapes and versions, and the messages of an input."""
