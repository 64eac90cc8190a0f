"""The error tree.

SidecarError
├── ConfigError       a setting that cannot work; the text names it and says what to do
├── WireError         bytes from outside that are not what they should be; counted and dropped
└── SocketTakenError  another sidecar already serves the socket
"""


class SidecarError(Exception):
    """Root of all errors that this project raises on purpose."""


class ConfigError(SidecarError):
    pass


class WireError(SidecarError):
    pass


class SocketTakenError(SidecarError):
    pass
