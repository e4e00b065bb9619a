"""The page on which people try a network with an image; it needs no network but the service itself."""

from nestling.service.page.document import content_policy, page
