"""The one door to AWS: record source, object store, queues."""
