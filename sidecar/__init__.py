"""The service beside the prefill ranks: it owns terminal records and tells decode endpoints what they are owed."""
