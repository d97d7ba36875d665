"""Where are a sample's bytes?"""

from rekindle.fetch.folder import IMAGE_EXTENSIONS, Folder
from rekindle.fetch.remote_store import RemoteOptions

__all__ = ["IMAGE_EXTENSIONS", "Folder", "RemoteOptions"]
