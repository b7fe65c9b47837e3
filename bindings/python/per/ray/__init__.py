"""One replay buffer on many machines: its shards are Ray actors, and draw as one buffer would.

Requires Ray, `pip install 'libper[ray]'`. Imported only on request: `import per.ray`.
"""

from per.ray.channel import Channel, ChannelEnded, ChannelWriter
from per.ray.loader import Loader
from per.ray.replay import ReplayBuffer, Statistics
from per.ray.writer import Writer

__all__ = ["Channel", "ChannelEnded", "ChannelWriter", "Loader", "ReplayBuffer", "Statistics", "Writer"]
