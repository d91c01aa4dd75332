"""What is recorded and kept: records, events, the database, statistics of times."""
