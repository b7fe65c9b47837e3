"""One replay buffer on many machines: shards that are actors of Ray, and draw what one buffer would.

It needs Ray, `pip install 'libper[ray]'`, and is imported only when asked for: `import per.ray`.
"""

from per.ray.channel import Channel, ChannelEnded, ChannelWriter
from per.ray.loader import Loader
from per.ray.replay import ReplayBuffer, Statistics
from per.ray.writer import Writer

__all__ = ["Channel", "ChannelEnded", "ChannelWriter", "Loader", "ReplayBuffer", "Statistics", "Writer"]
