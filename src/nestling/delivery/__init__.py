"""Delivery: networks in files that run where nestling is not."""

from nestling.delivery.small import Packing, load_small, save_small

__all__ = ["Packing", "load_small", "save_small"]
