/* device.h: what the scripted model knows of its device besides the table. */
#ifndef GERYON_SCRIPTED_DEVICE_H
#define GERYON_SCRIPTED_DEVICE_H

#include "tests/scripted/script.h"

/* Give an opened device its script, which it takes. */
void device_set_script(struct device *dev, struct script *script);
const struct script *device_script(const struct device *dev);

#endif
