"""Where are a sample's bytes?"""

from rekindle.fetch.folder import IMAGE_EXTENSIONS, Folder

__all__ = ["IMAGE_EXTENSIONS", "Folder"]
