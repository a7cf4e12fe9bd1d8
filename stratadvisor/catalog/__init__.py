"""Published figures of devices, links and models, each with its source."""
