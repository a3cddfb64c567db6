/*
 * A library that nvml-wrapper takes for NVIDIA's: the tests build it and load it by the real path.
 *
 * GPU 0 is split by MIG into two instances. GPU 1 is in trouble: it has an uncorrected ECC error, a
 * row of memory that waits to be replaced, is slowed down by heat, has reported XIDs 31 and 79, and
 * one process computes on it. Built with -DBROKEN, every question about a GPU fails; with -DLOST, GPU
 * 1 falls off the bus after it has been asked once for its name; with -DHANGS, the second count of
 * GPUs never returns.
 *
 * Layouts and numbers are those of nvml.h.
 */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct gpu *nvmlDevice_t;
typedef struct set *nvmlEventSet_t;

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    UNKNOWN = 999,
};

struct gpu {
    const char *name;
    const char *uuid;
};

static struct gpu gpus[2] = {
    {"NVIDIA A100-SXM4-80GB", "GPU-00112233-4455-6677-8899-aabbccddeeff"},
    {"NVIDIA H100 80GB HBM3", "GPU-ffeeddcc-bbaa-9988-7766-554433221100"},
};
static struct gpu instance;
static int counted, named, reported;

#ifdef BROKEN
#define ANSWER(device) \
    do { \
        (void)(device); \
        return UNKNOWN; \
    } while (0)
#elif defined(LOST)
#define ANSWER(device) \
    do { \
        if ((device) == &gpus[1] && named > 1) \
            return GPU_IS_LOST; \
    } while (0)
#else
#define ANSWER(device) \
    do { \
        if ((device) == NULL) \
            return INVALID_ARGUMENT; \
    } while (0)
#endif

nvmlReturn_t nvmlInit_v2(void) { return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "550.54.15");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    counted++;
#ifdef HANGS
    /* The first is asked while the library is opened, the second by the first sample. */
    if (counted > 2)
        for (;;)
            sleep(1);
#endif
    *count = 2;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index > 1)
        return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    ANSWER(device);
    *index = device == &gpus[1];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned length) {
    named += device == &gpus[1];
    ANSWER(device);
    snprintf(text, length, "%s", device->name);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length) {
    ANSWER(device);
    snprintf(text, length, "%s", device->uuid);
    return SUCCESS;
}

struct memory {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory *memory) {
    ANSWER(device);
    if (memory->version != (sizeof *memory | 2u << 24))
        return INVALID_ARGUMENT;
    memory->total = 80ull << 30;
    memory->used = device == &gpus[1] ? 3ull << 30 : 0;
    memory->reserved = 0;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

struct utilization {
    unsigned gpu, memory;
};

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *rates) {
    ANSWER(device);
    /* As the real one answers for a GPU that is split. */
    if (device == &gpus[0])
        return NOT_SUPPORTED;
    rates->gpu = 87;
    rates->memory = 12;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *degrees) {
    ANSWER(device);
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *degrees = device == &gpus[1] ? 91 : 33;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    ANSWER(device);
    *milliwatts = device == &gpus[1] ? 699900 : 61000;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    ANSWER(device);
    *current = *pending = device == &gpus[0];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    ANSWER(device);
    *count = 7;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig) {
    ANSWER(device);
    /* Instances need not be numbered without gaps. */
    if (index != 0 && index != 3)
        return NOT_FOUND;
    *mig = &instance;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter, unsigned long long *count) {
    ANSWER(device);
    if (kind != 1 || counter != 0)
        return INVALID_ARGUMENT;
    *count = device == &gpus[1];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, int *pending) {
    ANSWER(device);
    (void)pending;
    return NOT_SUPPORTED;
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type;
    nvmlReturn_t result;
    union {
        unsigned number;
        unsigned long long wide;
    } value;
};

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, struct field *fields) {
    ANSWER(device);
    for (int i = 0; i < count; i++) {
        fields[i].type = 1;
        fields[i].result = SUCCESS;
        fields[i].value.number = device == &gpus[1] && fields[i].id == 144;
    }
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    ANSWER(device);
    /* Idle here; there, slowed down by heat and capped by software. */
    *reasons = device == &gpus[1] ? 0x40 | 0x4 : 0x1;
    return SUCCESS;
}

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process *list) {
    ANSWER(device);
    unsigned room = *count;
    *count = device == &gpus[1];
    if (room < *count)
        return INSUFFICIENT_SIZE;
    if (*count > 0)
        list[0] = (struct process){4242, 1ull << 30, ~0u, ~0u};
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    *set = (nvmlEventSet_t)&reported;
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    (void)set;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    ANSWER(device);
    *types = 0x8;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    ANSWER(device);
    return types == 0x8 && set ? SUCCESS : INVALID_ARGUMENT;
}

struct event {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct event *event, unsigned timeout) {
    static const unsigned xids[2] = {79, 31};
    (void)set;
    if (timeout != 0 || reported >= 2)
        return TIMEOUT;
    *event = (struct event){&gpus[1], 0x8, xids[reported++], ~0u, ~0u};
    return SUCCESS;
}
