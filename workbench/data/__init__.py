"""Records and their storage: records, events, the database, statistics of times."""
