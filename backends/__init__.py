"""Where blocks lie: the device pool, host memory, disk, and wrappers around them."""
