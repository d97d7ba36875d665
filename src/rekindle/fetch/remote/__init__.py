"""Packed files and folders of images in object stores and on web servers."""
