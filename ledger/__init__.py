"""The record of every promise: windows, claims, entries and attempts in PostgreSQL. It knows no AWS."""
