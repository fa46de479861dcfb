"""From a due record to a confirmed job."""
