"""A program asks for events of the device to be told to a descriptor that cannot take them."""

import ctypes
import os
import time

FLAG_DEVX = 1
PORT_CHANGE = 9


class Attributes(ctypes.Structure):
    """`struct mlx5dv_context_attr`."""

    _fields_ = [("flags", ctypes.c_uint32), ("comp_mask", ctypes.c_uint64), ("fds", ctypes.c_void_p)]


def ask():
    """Subscribe, in a process of its own: on an affected kernel it dies there."""
    verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    mlx5 = ctypes.CDLL("libmlx5.so.1", use_errno=True)
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    mlx5.mlx5dv_open_device.restype = mlx5.mlx5dv_devx_create_event_channel.restype = ctypes.c_void_p
    mlx5.mlx5dv_open_device.argtypes = [ctypes.c_void_p, ctypes.POINTER(Attributes)]
    mlx5.mlx5dv_devx_create_event_channel.argtypes = [ctypes.c_void_p, ctypes.c_int]
    mlx5.mlx5dv_devx_subscribe_devx_event_fd.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint16,
    ]  # fmt: skip
    device = verbs.ibv_get_device_list(None)[0]
    context = mlx5.mlx5dv_open_device(device, ctypes.byref(Attributes(FLAG_DEVX, 0, None)))
    channel = mlx5.mlx5dv_devx_create_event_channel(context, 0)
    print(f"context {bool(context)}, channel {bool(channel)}", flush=True)
    if channel:
        # Any open file will do that is no eventfd.
        answer = mlx5.mlx5dv_devx_subscribe_devx_event_fd(channel, 1, None, PORT_CHANGE)
        print(f"subscribing with a descriptor that is no eventfd: {os.strerror(abs(answer))}", flush=True)


child = os.fork()
if child == 0:
    ask()
    os._exit(0)
until = time.monotonic() + 15
while time.monotonic() < until:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        print(f"the program ended with status {status}", flush=True)
        break
    time.sleep(0.1)
else:
    print("the program hangs", flush=True)
