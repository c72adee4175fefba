"""Files and addresses: names of others made paths, reading with limits, durable writes, whole folders, locks."""
