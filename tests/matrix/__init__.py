"""`make matrix`: prefill and decode of different sglang versions, each with the plugin and without, on real pairs."""
