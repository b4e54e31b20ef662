// SPDX-License-Identifier: BSD-3-Clause
/* A user of the RDMA core that forgets to unmap: for each device one buffer stays mapped, unless pairs=1. */
#include <linux/module.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

static bool pairs;
module_param(pairs, bool, 0444);

#define BYTES 4096

static int leak_add(struct ib_device *device)
{
	void *buffer = kmalloc(BYTES, GFP_KERNEL);
	u64 address;

	if (!buffer)
		return -ENOMEM;
	address = ib_dma_map_single(device, buffer, BYTES, DMA_TO_DEVICE);
	if (ib_dma_mapping_error(device, address)) {
		kfree(buffer);
		return -EIO;
	}
	pr_info("leak: %s: mapped %d bytes at %#llx\n", dev_name(&device->dev), BYTES, address);
	if (pairs) {
		ib_dma_unmap_single(device, address, BYTES, DMA_TO_DEVICE);
		kfree(buffer);
	}
	return 0;
}

static void leak_remove(struct ib_device *device, void *data)
{
}

static struct ib_client leak_client = { .name = "leak", .add = leak_add, .remove = leak_remove };

static int __init leak_init(void)
{
	return ib_register_client(&leak_client);
}

static void __exit leak_exit(void)
{
	ib_unregister_client(&leak_client);
}

module_init(leak_init);
module_exit(leak_exit);
MODULE_DESCRIPTION("maps memory for InfiniBand devices and does not unmap it");
MODULE_LICENSE("Dual BSD/GPL");
