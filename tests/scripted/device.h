/* device.h: what the scripted model knows of its device besides the table. */
#ifndef GERYON_SCRIPTED_DEVICE_H
#define GERYON_SCRIPTED_DEVICE_H

#include "tests/scripted/script.h"

struct scripted_time;

/* Give an opened device its script, which it takes. */
void device_set_script(struct device *dev, struct script *script);
/* Simulated time from now on; NULL: sleep as the script says. */
void device_set_time(struct device *dev, struct scripted_time *time);
const struct script *device_script(const struct device *dev);

#endif
