package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// held is what processes have of eBPF in the kernel, pinned or not: what they have
// open, and what that leads to. By id: many have the same name.
type held struct {
	t        *testing.T
	links    map[link.ID]string // their names
	programs map[ebpf.ProgramID]string
	maps     map[ebpf.MapID]string
}

func newHeld(t *testing.T) *held {
	return &held{t, map[link.ID]string{}, map[ebpf.ProgramID]string{}, map[ebpf.MapID]string{}}
}

// by adds what a process has open; proc is its folder in /proc.
func (h *held) by(proc string) {
	files, _ := filepath.Glob(proc + "/fdinfo/*")
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may be closed by now
		for l := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(l), ":\t")
			id, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				continue
			}
			switch name {
			case "link_id":
				h.link(link.ID(id))
			case "prog_id":
				h.program(ebpf.ProgramID(id))
			case "map_id":
				h.table(ebpf.MapID(id))
			}
		}
	}
}

// gone reports an error. That something has been closed meanwhile is none of the test.
func (h *held) gone(err error) bool {
	h.t.Helper()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.t.Error(err)
	}
	return err != nil
}

func (h *held) link(id link.ID) {
	if _, known := h.links[id]; known {
		return
	}
	l, err := link.NewFromID(id)
	if h.gone(err) {
		return
	}
	defer l.Close()
	info, err := l.Info()
	if h.gone(err) {
		return
	}
	h.program(info.Program)
	h.links[id] = "to " + h.programs[info.Program]
}

func (h *held) program(id ebpf.ProgramID) {
	if _, known := h.programs[id]; known {
		return
	}
	p, err := ebpf.NewProgramFromID(id)
	if h.gone(err) {
		return
	}
	defer p.Close()
	info, err := p.Info()
	if h.gone(err) {
		return
	}
	h.programs[id] = info.Name
	tables, _ := info.MapIDs()
	for _, id := range tables {
		h.table(id)
	}
}

func (h *held) table(id ebpf.MapID) {
	if _, known := h.maps[id]; known {
		return
	}
	m, err := ebpf.NewMapFromID(id)
	if h.gone(err) {
		return
	}
	defer m.Close()
	info, err := m.Info()
	if h.gone(err) {
		return
	}
	h.maps[id] = info.Name
	var lead func(id uint32)
	switch m.Type() {
	case ebpf.ProgramArray:
		lead = func(id uint32) { h.program(ebpf.ProgramID(id)) }
	case ebpf.ArrayOfMaps, ebpf.HashOfMaps:
		lead = func(id uint32) { h.table(ebpf.MapID(id)) }
	default:
		return
	}
	var key, value uint32
	each := m.Iterate()
	for each.Next(&key, &value) {
		lead(value)
	}
	h.gone(each.Err())
}

// count adds all to a census.
func (h *held) count(c census, where string) {
	for _, name := range h.links {
		c[thing{where, "BPF link", name}]++
	}
	for _, name := range h.programs {
		c[thing{where, "BPF program", name}]++
	}
	for _, name := range h.maps {
		c[thing{where, "BPF map", name}]++
	}
}
