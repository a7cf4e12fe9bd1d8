/*
 * A double of libnvidia-ml.so.1 for tests: it answers from a description of a machine, so that the real pynvml, with
 * its ctypes structures and its way of loading the library, runs on a machine without a GPU.
 *
 * The description is the file named by NVML_DOUBLE_MACHINE. Lines are "key value"; '#' begins a comment.
 *   init N              nvmlInit fails with error N
 *   driver TEXT
 *   device              begins a device; the keys that follow belong to it
 *   slice               begins a MIG slice of the device before it
 *   link A B N          N NVLinks from device A to device B, each way
 *   switch A N          N NVLinks from device A to an NVSwitch
 *   topology A B LEVEL  nvmlGpuTopologyLevel_t of a pair (all pairs: "topology * * LEVEL")
 *   p2p A B STATUS      nvmlGpuP2PStatus_t of a pair (all pairs: "p2p * * STATUS")
 * A value of the form "!N" makes the call fail with error N; a key that is missing answers "not supported" (3).
 * The key "hang N" lets the question for the name take N seconds.
 * The key "lost_after N" lets it answer N questions about the device and then none: error 15, as after an XID 79.
 * The key "handle !N" lets the device be counted but gives no handle; "dead N" fails every call about it with N.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { MAX_DEVICES = 32, MAX_KEYS = 64, MAX_SLICES = 8, MAX_PAIRS = 512, MAX_LINKS = 18 };

struct pair { char key[64]; char value[192]; };
typedef struct device {
    struct pair pairs[MAX_KEYS];
    int num_pairs, number, num_slices, asked;
    struct device *slices[MAX_SLICES];
    struct device *parent;
    int link_to[MAX_LINKS], num_links; /* peer device, or -1 for a switch */
} device;

static device *devices[MAX_DEVICES];
static int num_devices, init_error, ready;
static char driver[96];
static struct { int topology, a, b, value; } relations[MAX_PAIRS];
static int num_relations;

static void add_link(int a, int to, int count) {
    for (int i = 0; i < count && devices[a]->num_links < MAX_LINKS; i++)
        devices[a]->link_to[devices[a]->num_links++] = to;
}

static void relate(int topology, const char *a, const char *b, int value) {
    relations[num_relations].topology = topology;
    relations[num_relations].a = *a == '*' ? -1 : atoi(a);
    relations[num_relations].b = *b == '*' ? -1 : atoi(b);
    relations[num_relations++].value = value;
}

static void read_machine(void) {
    const char *path = getenv("NVML_DOUBLE_MACHINE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[320], a[16], b[16];
    int x, y, n;
    device *now = NULL, *card = NULL;
    if (!file) { init_error = 999; return; }
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *text = line + strspn(line, " \t");
        if (!*text || *text == '#') continue;
        char *value = text + strcspn(text, " \t");
        if (*value) { *value++ = 0; value += strspn(value, " \t"); }
        if (!strcmp(text, "init")) init_error = atoi(value);
        else if (!strcmp(text, "driver")) snprintf(driver, sizeof driver, "%s", value);
        else if (!strcmp(text, "device")) {
            now = card = devices[num_devices] = calloc(1, sizeof(device));
            card->number = num_devices++;
        } else if (!strcmp(text, "slice")) {
            now = card->slices[card->num_slices] = calloc(1, sizeof(device));
            now->number = card->num_slices++;
            now->parent = card;
        } else if (!strcmp(text, "link") && sscanf(value, "%d %d %d", &x, &y, &n) == 3) {
            add_link(x, y, n);
            add_link(y, x, n);
        } else if (!strcmp(text, "switch") && sscanf(value, "%d %d", &x, &n) == 2) add_link(x, -1, n);
        else if (!strcmp(text, "topology") && sscanf(value, "%15s %15s %d", a, b, &n) == 3) relate(1, a, b, n);
        else if (!strcmp(text, "p2p") && sscanf(value, "%15s %15s %d", a, b, &n) == 3) relate(0, a, b, n);
        else if (now && now->num_pairs < MAX_KEYS) {
            snprintf(now->pairs[now->num_pairs].key, 64, "%s", text);
            snprintf(now->pairs[now->num_pairs++].value, 192, "%s", value);
        }
    }
    fclose(file);
}

/* The value of a key, or NULL with the error that the call is to return. */
static const char *get(device *d, const char *key, nvmlReturn_t *error) {
    const char *found = NULL;
    *error = ready ? NOT_SUPPORTED : UNINITIALIZED;
    if (!ready) return NULL;
    if (!d) { *error = INVALID_ARGUMENT; return NULL; }
    d->asked++;
    for (int i = 0; i < d->num_pairs; i++) {
        if (!strcmp(d->pairs[i].key, "lost_after") && d->asked > atoi(d->pairs[i].value)) { *error = 15; return NULL; }
        if (!strcmp(d->pairs[i].key, "dead")) { *error = atoi(d->pairs[i].value); return NULL; }
        if (!strcmp(d->pairs[i].key, key)) found = d->pairs[i].value;
    }
    if (found && *found == '!') { *error = atoi(found + 1); return NULL; }
    return found;
}

static nvmlReturn_t text(device *d, const char *key, char *out, unsigned size) {
    nvmlReturn_t error;
    const char *value = get(d, key, &error);
    if (!value) return error;
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static nvmlReturn_t number(device *d, const char *key, unsigned *out) {
    nvmlReturn_t error;
    const char *value = get(d, key, &error);
    if (!value) return error;
    *out = (unsigned)strtoul(value, NULL, 0);
    return SUCCESS;
}

static nvmlReturn_t two(device *d, const char *key, int *first, int *second) {
    nvmlReturn_t error;
    const char *value = get(d, key, &error);
    if (!value) return error;
    return sscanf(value, "%d %d", first, second) == 2 ? SUCCESS : INVALID_ARGUMENT;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (!num_devices && !init_error) read_machine();
    ready = !init_error;
    return init_error;
}
nvmlReturn_t nvmlShutdown(void) { ready = 0; return SUCCESS; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    if (strlen(driver) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, driver);
    return SUCCESS;
}
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    for (int i = 0; i < num_devices; i++) {
        char key[64];
        snprintf(key, sizeof key, "process_name.%u", pid);
        if (text(devices[i], key, out, size) == SUCCESS) return SUCCESS;
    }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    if (!ready) return UNINITIALIZED;
    *out = num_devices;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    if (!ready) return UNINITIALIZED;
    if (index >= (unsigned)num_devices) return INVALID_ARGUMENT;
    for (int i = 0; i < devices[index]->num_pairs; i++)
        if (!strcmp(devices[index]->pairs[i].key, "handle")) return atoi(devices[index]->pairs[i].value + 1);
    *out = devices[index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(device *d, char *out, unsigned size) {
    unsigned seconds;
    if (number(d, "hang", &seconds) == SUCCESS) sleep(seconds);
    return text(d, "name", out, size);
}
nvmlReturn_t nvmlDeviceGetUUID(device *d, char *out, unsigned size) { return text(d, "uuid", out, size); }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, device **out) {
    char own[96];
    for (int i = 0; ready && i < num_devices; i++)
        if (text(devices[i], "uuid", own, sizeof own) == SUCCESS && !strcmp(own, uuid)) {
            *out = devices[i];
            return SUCCESS;
        }
    return ready ? NOT_FOUND : UNINITIALIZED;
}
/* energy_mj, and energy_mj_more for every reading before this one */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *out) {
    static unsigned readings;
    unsigned now = 0, more = 0;
    nvmlReturn_t error = number(d, "energy_mj", &now);
    number(d, "energy_mj_more", &more);
    *out = now + (unsigned long long)more * readings++;
    return error;
}

struct memory { unsigned long long total, free, used; };
nvmlReturn_t nvmlDeviceGetMemoryInfo(device *d, struct memory *out) {
    nvmlReturn_t error;
    const char *value = get(d, "memory_mib", &error); /* total, free */
    unsigned long long total, left;
    if (!value) return error;
    if (sscanf(value, "%llu %llu", &total, &left) != 2) return INVALID_ARGUMENT;
    out->total = total << 20, out->free = left << 20, out->used = (total - left) << 20;
    return SUCCESS;
}
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(device *d, struct memory_v2 *out) {
    struct memory plain;
    nvmlReturn_t error = nvmlDeviceGetMemoryInfo(d, &plain);
    if (error) return error;
    if (out->version != 0x02000028) return 25;
    unsigned reserved = 0;
    number(d, "reserved_mib", &reserved);
    out->total = plain.total, out->free = plain.free, out->reserved = (unsigned long long)reserved << 20;
    out->used = plain.used - out->reserved;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    return two(d, "compute_capability", major, minor);
}
nvmlReturn_t nvmlDeviceGetEccMode(device *d, int *now, int *pending) { return two(d, "ecc", now, pending); }
nvmlReturn_t nvmlDeviceGetMigMode(device *d, int *now, int *pending) { return two(d, "mig", now, pending); }
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out) { *out = d ? MAX_SLICES : 0; return SUCCESS; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    if (index >= (unsigned)d->num_slices) return NOT_FOUND;
    *out = d->slices[index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(device *d, unsigned *out) { return number(d, "pcie_generation", out); }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned *out) {
    return number(d, "pcie_generation_max", out);
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(device *d, unsigned *out) { return number(d, "pcie_width", out); }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned *out) { return number(d, "pcie_width_max", out); }
nvmlReturn_t nvmlDeviceGetClockInfo(device *d, int kind, unsigned *out) {
    return kind == 1 ? number(d, "clock_mhz", out) : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(device *d, int kind, unsigned *out) {
    return kind == 1 ? number(d, "clock_max_mhz", out) : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(device *d, unsigned *out) { return number(d, "power_limit_mw", out); }
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(device *d, unsigned *out) {
    return number(d, "power_default_mw", out);
}
nvmlReturn_t nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out) {
    return sensor == 0 ? number(d, "temperature", out) : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetComputeMode(device *d, unsigned *out) { return number(d, "compute_mode", out); }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *out) {
    unsigned bits = 0;
    nvmlReturn_t error = number(d, "event_reasons", &bits);
    *out = bits;
    return error;
}
nvmlReturn_t nvmlDeviceGetVirtualizationMode(device *d, unsigned *out) { return number(d, "virtualization", out); }
struct addressing { unsigned version, value; };
nvmlReturn_t nvmlDeviceGetAddressingMode(device *d, struct addressing *out) {
    return number(d, "addressing", &out->value);
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
static void fill_pci(const char *value, struct pci *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", value);
    sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(device *d, struct pci *out) {
    nvmlReturn_t error;
    const char *value = get(d, "bus", &error);
    if (!value) return error;
    fill_pci(value, out);
    return SUCCESS;
}
struct process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, struct process *out) {
    nvmlReturn_t error;
    const char *value = get(d, "process", &error); /* pid, MiB (-1: not told) */
    unsigned pid;
    long long used;
    unsigned room = *count;
    *count = 0;
    if (!value) return error == NOT_SUPPORTED ? SUCCESS : error;
    if (sscanf(value, "%u %lld", &pid, &used) != 2) return INVALID_ARGUMENT;
    *count = 1;
    if (!out || room < 1) return INSUFFICIENT_SIZE;
    memset(out, 0, sizeof *out);
    out->pid = pid;
    out->used = used < 0 ? ~0ULL : (unsigned long long)used << 20;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(device *d, unsigned *a, unsigned *b, unsigned *pending, unsigned *failure) {
    int waits = 0, failed = 0;
    nvmlReturn_t error = two(d, "remapped", &waits, &failed);
    *a = *b = 0;
    *pending = waits, *failure = failed;
    return error;
}
struct fabric { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; };
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(device *d, struct fabric *out) {
    unsigned state;
    nvmlReturn_t error = number(d, "fabric", &state);
    if (!error) out->state = (unsigned char)state;
    return error;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *out) {
    nvmlReturn_t error;
    if (!get(d, "name", &error)) return error;
    if (!d->num_links) return NOT_SUPPORTED;
    if (link >= (unsigned)d->num_links) return INVALID_ARGUMENT;
    *out = 1;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, unsigned *out) {
    *out = d->link_to[link] < 0 ? 2 : 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned link, struct pci *out) {
    if (d->link_to[link] < 0) { fill_pci("00000000:00:00.0", out); return SUCCESS; }
    return nvmlDeviceGetPciInfo_v3(devices[d->link_to[link]], out);
}
struct field { unsigned id, scope; long long stamp, latency; unsigned type; nvmlReturn_t code; union { unsigned ui; double d; } value; };
nvmlReturn_t nvmlDeviceGetFieldValues(device *d, int count, struct field *values) {
    for (int i = 0; i < count; i++)
        values[i].code = values[i].id == 90 ? number(d, "nvlink_mb_per_second", &values[i].value.ui) : NOT_SUPPORTED;
    return SUCCESS;
}
static nvmlReturn_t relation(int topology, device *a, device *b, unsigned *out) {
    nvmlReturn_t error;
    if (!get(a, "name", &error) || !get(b, "name", &error)) return error;
    int found = -1;
    for (int i = 0; i < num_relations; i++) {
        int one = relations[i].a, two = relations[i].b;
        int hit = (one == a->number && two == b->number) || (one == b->number && two == a->number);
        if (relations[i].topology == topology && (hit || one < 0)) found = relations[i].value;
    }
    if (found < 0) return NOT_SUPPORTED;
    *out = found;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(device *a, device *b, unsigned *out) { return relation(1, a, b, out); }
nvmlReturn_t nvmlDeviceGetP2PStatus(device *a, device *b, int what, unsigned *out) {
    return what > 1 ? NOT_SUPPORTED : relation(0, a, b, out);
}
