"""sglang's versions, compared as numbers. Only tests do this: the plugin looks at what is there."""


def at_least(version: str, other: str) -> bool:
    return _numbers(version) >= _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
