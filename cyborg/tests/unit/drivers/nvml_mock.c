/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mock of NVIDIA's library NVML: two GPUs, of which the second has the state in NVML_MOCK.
 *
 * The names, values and layouts are those of nvml.h; the answers are those that NVIDIA documents
 * for an A100. Functions that are not here are "not found" for nvidia-ml-py.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9, LOST = 15 };
enum { RECOVERY_ACTION = 230, MOST = 2 };

struct device { const char *address, *uuid, *serial, *name; int number; };
struct memory { unsigned long long total, free, used; };
struct utilization { unsigned int gpu, memory; };
struct field {
    unsigned int id, scope;
    long long timestamp, latency;
    int type, status;
    union { double d; unsigned int ui; unsigned long long ull; } value;
};

static struct device gpus[MOST] = {
    {"0000:3b:00.0", "GPU-5a1f0c9e-7a6f-4b52-8d0e-0c2f3d4e5f60", "1562320000001",
     "NVIDIA A100 80GB PCIe", 0},
    {"0000:86:00.0", "GPU-9c3b7d12-0e4f-4a66-9b1d-6f5e4d3c2b1a", "1562320000002",
     "NVIDIA A100 80GB PCIe", 1},
};
static struct device parts[] = {
    {"", "MIG-1", "", "NVIDIA A100 80GB PCIe MIG 1g.10gb", 2},
    {"", "MIG-2", "", "NVIDIA A100 80GB PCIe MIG 3g.40gb", 2},
};

static int state_is(const char *name)
{
    const char *state = getenv("NVML_MOCK");
    return state != NULL && strcmp(state, name) == 0;
}

static int second(const struct device *gpu) { return gpu->number == 1; }

/* Return the status of a question about a GPU; one that is hung or crashes does not return. */
static int asked(const struct device *gpu)
{
    if (!second(gpu))
        return SUCCESS;
    if (state_is("hang"))
        for (;;)
            pause();
    if (state_is("crash"))
        raise(SIGSEGV);
    return state_is("lost") ? LOST : SUCCESS;
}

static int text(char *buffer, unsigned int size, const char *value)
{
    snprintf(buffer, size, "%s", value);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    puts("a line of the library");
    return state_is("unloaded") ? NOT_LOADED : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int status) { return status == LOST ? "GPU is lost" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *buffer, unsigned int size)
{
    return text(buffer, size, "550.90.07");
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct device **found)
{
    for (int i = 0; i < MOST; i++)
        if (strcmp(gpus[i].address, address) == 0) {
            *found = &gpus[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(struct device *gpu, char *buffer, unsigned int size)
{
    int status = asked(gpu);
    return status == SUCCESS ? text(buffer, size, gpu->uuid) : status;
}

int nvmlDeviceGetSerial(struct device *gpu, char *buffer, unsigned int size)
{
    int status = asked(gpu);
    return status == SUCCESS ? text(buffer, size, gpu->serial) : status;
}

int nvmlDeviceGetName(struct device *gpu, char *buffer, unsigned int size)
{
    return text(buffer, size, gpu->name);
}

int nvmlDeviceGetMemoryInfo(struct device *gpu, struct memory *memory)
{
    memory->total = 85899345920ULL;
    memory->used = 1073741824ULL;
    memory->free = memory->total - memory->used;
    return asked(gpu);
}

int nvmlDeviceGetTotalEccErrors(struct device *gpu, int kind, int counter,
                                unsigned long long *count)
{
    /* Uncorrected errors are kind 1, volatile counters 0. */
    *count = second(gpu) && state_is("ecc") && kind == 1 && counter == 0 ? 3 : 0;
    return asked(gpu);
}

int nvmlDeviceGetRemappedRows(struct device *gpu, unsigned int *corrected,
                              unsigned int *uncorrected, unsigned int *pending,
                              unsigned int *failed)
{
    *corrected = *failed = 0;
    *uncorrected = *pending = second(gpu) && state_is("ecc");
    return asked(gpu);
}

int nvmlDeviceGetFieldValues(struct device *gpu, int count, struct field *fields)
{
    for (int i = 0; i < count; i++) {
        fields[i].status = fields[i].id == RECOVERY_ACTION ? SUCCESS : NOT_SUPPORTED;
        fields[i].value.ui = second(gpu) && state_is("recovery");
    }
    return asked(gpu);
}

int nvmlDeviceGetUtilizationRates(struct device *gpu, struct utilization *rates)
{
    if (second(gpu) && state_is("mig"))
        return NOT_SUPPORTED;
    rates->gpu = 37;
    rates->memory = 12;
    return asked(gpu);
}

int nvmlDeviceGetTemperature(struct device *gpu, int sensor, unsigned int *degrees)
{
    *degrees = sensor == 0 ? 41 : 0;
    return asked(gpu);
}

int nvmlDeviceGetPowerUsage(struct device *gpu, unsigned int *milliwatts)
{
    *milliwatts = 63500;
    return asked(gpu);
}

int nvmlDeviceGetEccMode(struct device *gpu, unsigned int *current, unsigned int *pending)
{
    *current = *pending = 1;
    return asked(gpu);
}

int nvmlDeviceGetVbiosVersion(struct device *gpu, char *version, unsigned int length)
{
    snprintf(version, length, "%s", "96.00.61.00.01");
    return asked(gpu);
}

int nvmlDeviceGetMigMode(struct device *gpu, unsigned int *current, unsigned int *pending)
{
    *current = *pending = second(gpu) && state_is("mig");
    return asked(gpu);
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *gpu, unsigned int *count)
{
    *count = 7;
    return asked(gpu);
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *gpu, unsigned int index,
                                        struct device **part)
{
    /* The first and the third number are taken. */
    if (index != 0 && index != 2)
        return NOT_FOUND;
    *part = &parts[index / 2];
    return asked(gpu);
}

/* vGPUs: two types that need no MIG, and one that needs an instance of the profile with the id 19. */
enum { VGPUS = 3, INSUFFICIENT_SIZE = 7, NO_PROFILE = -1, SLICE = 19 };
struct placements { unsigned int version, size, count; unsigned int *ids; };
struct profile {
    unsigned int version, id, p2p, slices, instances, multiprocessors, copy, decoder, encoder,
        jpeg, ofa;
    unsigned long long memory;
    char name[96];
};
static const unsigned int vgpu_ids[VGPUS] = {1150, 1155, 1500};

int nvmlDeviceGetSupportedVgpus(struct device *gpu, unsigned int *count, unsigned int *ids)
{
    unsigned int room = *count;
    if (!second(gpu) || !(state_is("vgpu") || state_is("mixed") || state_is("mig")))
        return NOT_SUPPORTED;
    *count = VGPUS;
    if (ids == NULL || room < VGPUS)
        return INSUFFICIENT_SIZE;
    memcpy(ids, vgpu_ids, sizeof vgpu_ids);
    return asked(gpu);
}

int nvmlDeviceGetVgpuHeterogeneousMode(struct device *gpu, unsigned int *mode)
{
    if (state_is("mig"))
        return NOT_SUPPORTED;
    mode[1] = state_is("mixed");
    return asked(gpu);
}

int nvmlVgpuTypeGetGpuInstanceProfileId(unsigned int type, unsigned int *profile)
{
    *profile = type == 1500 ? SLICE : (unsigned int)NO_PROFILE;
    return SUCCESS;
}

int nvmlVgpuTypeGetName(unsigned int type, char *buffer, unsigned int *size)
{
    const char *name = type == 1150 ? "NVIDIA L40S-8Q" : "NVIDIA L40S-48Q";
    return text(buffer, *size, type == 1500 ? "NVIDIA A100-1-10C" : name);
}

int nvmlVgpuTypeGetFramebufferSize(unsigned int type, unsigned long long *size)
{
    *size = type == 1155 ? 48ULL << 30 : type == 1150 ? 8ULL << 30 : 10ULL << 30;
    return SUCCESS;
}

int nvmlVgpuTypeGetMaxInstances(struct device *gpu, unsigned int type, unsigned int *most)
{
    *most = type == 1155 ? 1 : 6;
    return asked(gpu);
}

int nvmlDeviceGetVgpuTypeSupportedPlacements(struct device *gpu, unsigned int type,
                                             struct placements *placements)
{
    /* Fewer than of one size, because the places are multiples of powers of two. */
    placements->count = type == 1155 ? 1 : 4;
    return asked(gpu);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *gpu, unsigned int number,
                                         struct profile *profile)
{
    if (number != 0 || !state_is("mig"))
        return NOT_SUPPORTED;
    profile->id = SLICE;
    text(profile->name, sizeof profile->name, "MIG 1g.10gb");
    return asked(gpu);
}
