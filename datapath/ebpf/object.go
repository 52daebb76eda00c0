package ebpf

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

// The maps with flow entries; their names end with the version of the layout.
const (
	flowsMap   = "flows_v2"
	pendingMap = "pending_v2"
)

// formerMaps are the names of maps with flow entries of other layouts, which an
// older version left pinned.
var formerMaps = []string{"flows"}

// transient maps belong to one loaded program, not to the data path.
var transient = []string{"captures", "buckets"}

// resumeProgram goes on behind the dispatcher of bpf/functions.bpf.c.
const (
	resumeProgram         = "onpath_resume"
	dispatcherProgram     = "onpath_functions"
	fastDispatcherProgram = "onpath_fast_functions" // at XDP
)

//go:embed functions_bpfel.o
var dispatcherObject []byte

// loadObject loads the programs with the pinned maps in dir, which are made if
// they are not there. Maps of another layout, left by another version, are
// replaced; flows are learnt anew then.
func loadObject(spec *ebpf.CollectionSpec, o Options) (*ebpf.Collection, error) {
	dir := o.dir()
	keepSize(spec.Maps[flowsMap], filepath.Join(dir, flowsMap))
	c, err := loadAtAll(spec, dir, o.Log)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		o.Log.Warn("the pinned maps have another layout; flows are learnt anew", "path", dir, "error", err)
		if err = unpinMaps(dir, spec); err == nil {
			c, err = loadAtAll(spec, dir, o.Log)
		}
	}
	if err != nil {
		return nil, err
	}
	for _, name := range formerMaps {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			o.Log.Warn("flow entries of an older version take memory", "error", err)
		}
	}
	return c, nil
}

// loadAtAll loads without the fast path where the kernel refuses that alone.
func loadAtAll(spec *ebpf.CollectionSpec, dir string, log *slog.Logger) (*ebpf.Collection, error) {
	c, err := load(spec, dir)
	if err == nil || errors.Is(err, ebpf.ErrMapIncompatible) || spec.Programs[fastProgram] == nil {
		return c, err
	}
	fast := spec.Programs[fastProgram]
	delete(spec.Programs, fastProgram)
	c, without := load(spec, dir)
	if without != nil {
		spec.Programs[fastProgram] = fast
		return nil, err
	}
	log.Warn("the fast path cannot be loaded; all packets take the ordinary one", "error", err)
	return c, nil
}

// keepSize lets a pinned flow table keep the size it was made with.
func keepSize(spec *ebpf.MapSpec, file string) {
	m, err := ebpf.LoadPinnedMap(file, nil)
	if err != nil {
		return
	}
	spec.MaxEntries = m.MaxEntries()
	m.Close()
}

func objectSpec(o Options) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the compiled data path: %w", err)
	}
	spec.Maps[flowsMap].MaxEntries = tableSize(o.Flows, DefaultFlows)
	spec.Maps[pendingMap].InnerMap.MaxEntries = tableSize(o.Pending, DefaultPending)
	if err := errors.Join(fitFast(spec), fitLanes(spec)); err != nil {
		return nil, err
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
	v := spec.Variables["several_buffers"]
	if v == nil {
		return errors.New("the compiled data path has no variable several_buffers")
	}
	return v.Set(uint32(0))
}

func load(spec *ebpf.CollectionSpec, dir string) (*ebpf.Collection, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder for pinned maps: %w", err)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
	if err != nil {
		return nil, fmt.Errorf("load the data path into the kernel: %w", err)
	}
	return c, nil
}

func unpinMaps(dir string, spec *ebpf.CollectionSpec) error {
	for name := range spec.Maps {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove pinned map: %w", err)
		}
	}
	return nil
}

// needBPFFS mounts the BPF file system where root lies if it is not mounted: a
// new mount namespace often lacks it.
func needBPFFS(root string) error {
	const magic = 0xcafe4a11
	at := filepath.Dir(root)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return fmt.Errorf("find the BPF file system at %s: %w", at, err)
	}
	if st.Type == magic {
		return nil
	}
	if err := unix.Mount("bpf", at, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount the BPF file system at %s: %w", at, err)
	}
	return nil
}
