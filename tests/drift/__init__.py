"""The published wheels of sglang, looked into without installing them: do the hook points still fit?"""
