package ebpf

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

//go:generate make -B -C ../../bpf

//go:embed steer_bpfel.o
var object []byte

// program is the one of bpf/steer.bpf.c.
const program = "onpath_steer"

// fastProgram is the fast path of bpf/lib/fast.h, at XDP.
const fastProgram = "onpath_fast"

// insideProgram stands at WireGuard's device.
const insideProgram = "onpath_inside"

// The maps with flow entries; their names end with the version of the layout.
const (
	flowsMap   = "flows_v2"
	pendingMap = "pending_v2"
)

// affinitiesMap holds where flows are that meet one instance.
const affinitiesMap = "affinities"

// natsMap holds the translations of what instances send from private addresses.
const natsMap = "nats"

// localsMap holds the node's own addresses.
const localsMap = "locals"

// transient maps belong to one loaded program, not to the data path.
var transient = []string{"captures", "error_limits", "recent_errors", "attempts"}

// The dispatchers of bpf/functions.bpf.c.
const (
	dispatcherProgram     = "onpath_functions"
	fastDispatcherProgram = "onpath_fast_functions" // at XDP
)

//go:embed functions_bpfel.o
var dispatcherObject []byte

// loadObject loads the programs with the pinned maps in dir, which are made if
// they are not there. Where an older version left maps of another layout, there is
// a succession, and the programs have new ones.
func loadObject(spec *ebpf.CollectionSpec, o Options) (*ebpf.Collection, *succession, error) {
	dir := o.dir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make folder for pinned maps: %w", err)
	}
	if err := renameMaps(dir); err != nil {
		return nil, nil, err
	}
	if err := keepSizes(spec, dir, o.Log); err != nil {
		return nil, nil, err
	}
	s, err := succeed(spec, dir)
	if err != nil {
		return nil, nil, err
	}
	options := ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}}
	if s != nil {
		o.Log.Info("pinned maps have another layout or size; programs go on with them until the next configuration is complete",
			"path", dir, "resized", s.resized != nil)
		options.MapReplacements = s.maps
	}
	c, err := loadAtAll(spec, options, o.Log)
	if err != nil && s != nil {
		err = errors.Join(err, s.abandon())
	}
	return c, s, err
}

// loadAtAll loads without the fast path where the kernel refuses that alone.
func loadAtAll(spec *ebpf.CollectionSpec, o ebpf.CollectionOptions, log *slog.Logger) (*ebpf.Collection, error) {
	c, err := load(spec, o)
	if err == nil || spec.Programs[fastProgram] == nil {
		return c, err
	}
	fast := spec.Programs[fastProgram]
	delete(spec.Programs, fastProgram)
	c, without := load(spec, o)
	if without != nil {
		spec.Programs[fastProgram] = fast
		return nil, err
	}
	log.Warn("the fast path cannot be loaded; all packets take the ordinary one", "error", err)
	return c, nil
}

// perCPU is how many entries a table that makes room has at least for each CPU: kernels
// give each a stock of 128, and one that finds none left has a single entry.
const perCPU = 512

// fragmentsPerCPU is how many datagrams may be on their way in fragments on each CPU.
const fragmentsPerCPU = 1 << 11

// stationsPerCPU is how many ends of packets a bridge knows on each CPU.
const stationsPerCPU = 1 << 13

// fewestTranslations is what older versions had room for, in entries.
const fewestTranslations = 1 << 14

// sizeTranslations has flows run out before translations of them do.
func sizeTranslations(spec *ebpf.CollectionSpec) {
	spec.Maps[natsMap].MaxEntries = max(spec.Maps[flowsMap].MaxEntries, fewestTranslations)
}

// readObject is replaced by tests, which open hundreds of data paths.
var readObject = func() (*ebpf.CollectionSpec, error) {
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
}

// newCollection is replaced by tests, too.
var newCollection = ebpf.NewCollectionWithOptions

func objectSpec(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := readObject()
	if err != nil {
		return nil, fmt.Errorf("read the compiled data path: %w", err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	flows := o.Flows
	if flows == 0 {
		flows = defaultFlows()
	}
	spec.Maps[flowsMap].MaxEntries = tableSize(flows, 0)
	spec.Maps[pendingMap].InnerMap.MaxEntries = tableSize(o.Pending, pendingFor(spec.Maps[flowsMap].MaxEntries, cpus))
	sizeTranslations(spec)
	spec.Maps["stations"].MaxEntries = uint32(stationsPerCPU * cpus)
	spec.Maps["frags"].MaxEntries = uint32(fragmentsPerCPU * cpus)
	if err := fitFast(spec); err != nil {
		return nil, err
	}
	if refreshAlways {
		if err := setVariable(spec, "refresh_always", 1); err != nil {
			return nil, err
		}
	}
	for name, m := range spec.Maps {
		if name[0] != '.' && !slices.Contains(transient, name) {
			m.Pinning = ebpf.PinByName
		}
	}
	return spec, nil
}

// fitFast makes programs of the fast path such for kernels without frames in several buffers,
// if this is one (before Linux 5.18).
func fitFast(spec *ebpf.CollectionSpec) error {
	if features.HaveProgramHelper(ebpf.XDP, asm.FnXdpGetBuffLen) == nil {
		return nil
	}
	for _, p := range spec.Programs {
		if p.Type == ebpf.XDP {
			p.Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		}
	}
	return setVariable(spec, "several_buffers", 0)
}

// refreshAlways is for tests: each packet tells its next hop of the flow, not one a
// second, so that what happens does not depend on the clock.
var refreshAlways bool

func setVariable(spec *ebpf.CollectionSpec, name string, value uint32) error {
	v := spec.Variables[name]
	if v == nil {
		return fmt.Errorf("the compiled data path has no variable %s", name)
	}
	return v.Set(value)
}

func load(spec *ebpf.CollectionSpec, o ebpf.CollectionOptions) (*ebpf.Collection, error) {
	c, err := newCollection(spec, o)
	if err != nil {
		return nil, fmt.Errorf("load the data path into the kernel: %w", err)
	}
	return c, nil
}
