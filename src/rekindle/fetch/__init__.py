"""Where are a sample's bytes?"""

from rekindle.fetch.folder import IMAGE_EXTENSIONS, Folder
from rekindle.fetch.open_source import open_source
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.writers import Writer, writer_for
from rekindle.fetch.remote.object_store import RemoteOptions
from rekindle.fetch.source import Source

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
