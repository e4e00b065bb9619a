"""Delivery: networks in files that run where nestling is not."""

from nestling.delivery.small import save_small

__all__ = ["save_small"]
