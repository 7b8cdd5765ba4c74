"""What developing this project needs and a user's app does not."""
