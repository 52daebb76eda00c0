package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// portRange are ports that follow each other.
type portRange struct{ from, count uint32 }

// Ports by which flows are translated, as many toward each remote end point. The kernel
// gives none of them to its own sockets while it is asked to, and keeps some 3,600 of those
// that it chooses from by default. The first third is for whoever needs more than the
// share of the rest that is his alone.
var (
	natRange  = portRange{32768, 24576}
	natShared = portRange{32768, 8192}
)

// natShare is the nth of so many tenants' own ports.
func natShare(n, of int) portRange {
	each := (natRange.count - natShared.count) / uint32(of)
	return portRange{natShared.from + natShared.count + uint32(n)*each, each}
}

// shareOut gives each tenant its ports.
func shareOut(limits map[uint32]tenantValue) {
	slots := slices.DeleteFunc(slices.Sorted(maps.Keys(limits)), func(slot uint32) bool { return slot == 0 })
	for n, slot := range append([]uint32{0}, slots...) {
		own := natShared
		if n > 0 {
			own = natShare(n-1, len(slots))
		}
		v := limits[slot]
		v.PortsFrom, v.Ports = own.from, own.count
		limits[slot] = v
	}
}

const (
	reservedPorts = "ipv4/ip_local_reserved_ports"
	// reservedFile is where a map is pinned with what was reserved before.
	reservedFile = "reserved-ports"
)

// reservePorts has the kernel choose none of natRange for its own sockets, until Remove.
func reservePorts(ns *namespace, dir string) error {
	return ns.do(func() error {
		text, ports, err := readReserved()
		if err != nil || !slices.Contains(ports[natRange.from:natRange.from+natRange.count], false) {
			return err
		}
		if err := keepText(filepath.Join(dir, reservedFile), text); err != nil {
			return err
		}
		for p := range natRange.count {
			ports[natRange.from+p] = true
		}
		return sysctl(reservedPorts, formatPorts(ports))
	})
}

// giveBackPorts undoes that, in the namespace that the caller is in.
func giveBackPorts(dir string) error {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, reservedFile), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open what was reserved of ports: %w", err)
	}
	defer m.Close()
	text, err := m.LookupBytes(uint32(0))
	if err != nil {
		return fmt.Errorf("read what was reserved of ports: %w", err)
	}
	before, err := parsePorts(strings.TrimRight(string(text), "\x00"))
	if err != nil {
		return err
	}
	_, now, err := readReserved()
	if err != nil {
		return err
	}
	for p := natRange.from; p < natRange.from+natRange.count; p++ {
		now[p] = before[p]
	}
	return sysctl(reservedPorts, formatPorts(now))
}

// keepText pins a map with a text, unless there is one.
func keepText(file, text string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	value := append([]byte(text), make([]byte, 8-len(text)%8)...)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "reserved_ports", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(value)), MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("keep what is reserved of ports: %w", err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), value); err != nil {
		return fmt.Errorf("keep what is reserved of ports: %w", err)
	}
	if err := m.Pin(file); err != nil {
		return fmt.Errorf("keep what is reserved of ports: %w", err)
	}
	return nil
}

func readReserved() (string, *[65536]bool, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net", reservedPorts))
	if err != nil {
		return "", nil, fmt.Errorf("read reserved ports: %w", err)
	}
	text := strings.TrimSpace(string(b))
	ports, err := parsePorts(text)
	return text, ports, err
}

// parsePorts reads ports and ranges of ports as the kernel writes them: 8080,9000-9010.
func parsePorts(text string) (*[65536]bool, error) {
	ports := new([65536]bool)
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		from, to, is := strings.Cut(part, "-")
		if !is {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 16)
		b, err2 := strconv.ParseUint(to, 10, 16)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("read reserved ports %q: %w", part, err)
		}
		for p := a; p <= b; p++ {
			ports[p] = true
		}
	}
	return ports, nil
}

// formatPorts writes ports so. None are an empty line, which a sysctl takes.
func formatPorts(ports *[65536]bool) string {
	var parts []string
	for p := 0; p < len(ports); p++ {
		first := p
		for p < len(ports) && ports[p] {
			p++
		}
		switch p - first {
		case 0:
		case 1:
			parts = append(parts, strconv.Itoa(first))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", first, p-1))
		}
	}
	return strings.Join(parts, ",") + "\n"
}
