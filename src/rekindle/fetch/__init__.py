"""Where are a sample's bytes?"""

from rekindle.fetch.folder import IMAGE_EXTENSIONS, Folder
from rekindle.fetch.opening import open_source
from rekindle.fetch.packed import Packed
from rekindle.fetch.remote_store import RemoteOptions
from rekindle.fetch.source import Source
from rekindle.fetch.writers import Writer, writer_for

__all__ = [
    "IMAGE_EXTENSIONS",
    "Folder",
    "Packed",
    "RemoteOptions",
    "Source",
    "Writer",
    "open_source",
    "writer_for",
]
