package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// emptyAtFormer are maps whose contents a former program does without: it forwards
// established flows, which need no tables.
var emptyAtFormer = []string{
	"scratch", "frags", "watches", "watch_stats", "table_ids", "tables", "rules", "forests", "captures", "buckets", "stages", "fast_stages", "banks",
	"fast_banks", "fast_runs", "hops", "hop_slots", "hops_taken", pendingMap,
}

// BecomeFormer closes the driver and leaves all as an older version would have,
// whose compiled programs are given: the programs on the devices, the pinned maps
// in its layouts, and the flows learnt so far in them.
func (d *Driver) BecomeFormer(object []byte) error {
	entries := map[flowKey]flowValue{}
	d.mu.Lock()
	tables := flowTables{d.coll.Maps[flowsMap]}
	attached, noTCX := slices.Collect(maps.Keys(d.state.attach)), d.att.noTCX
	for _, m := range d.pending.of {
		tables = append(tables, m)
	}
	err := tables.each(d.life, func(k *flowKey, v *flowValue) bool {
		entries[*k] = *v
		return true
	})
	d.mu.Unlock()
	if err := errors.Join(err, d.Close()); err != nil {
		return err
	}
	c, err := formerMaps(object, d.opts.dir(), entries)
	if err != nil {
		return err
	}
	defer c.Close()
	ns, err := currentNamespace()
	if err != nil {
		return err
	}
	defer ns.close()
	as := &attachments{ns: ns, prog: c.Programs[program]}
	for _, a := range attached {
		file := filepath.Join(d.opts.dir(), a.file())
		switch {
		case a.hook == hookFast:
			err = os.Remove(file) // it had none
		case noTCX:
			err = as.attachFilter(a)
		default:
			err = updateLink(file, as.prog)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func updateLink(file string, p *ebpf.Program) error {
	l, err := link.LoadPinnedLink(file, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Update(p)
}

// formerMaps pins the maps of the former programs in the place of today's, with
// what is in these.
func formerMaps(object []byte, dir string, entries map[flowKey]flowValue) (*ebpf.Collection, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	for name, s := range spec.Maps {
		old, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if err != nil || slices.Contains(emptyAtFormer, name) {
			continue
		}
		now, known := specLayout(s)
		was, both := pinnedLayout(old, now)
		if !known || !both {
			return c, fmt.Errorf("the layouts of map %s are not known", name)
		}
		if err := errors.Join(fill(c.Maps[name], old, now, was), old.Close()); err != nil {
			return c, err
		}
	}
	for k, v := range entries {
		if err := c.Maps[flowsMap].Put(k, v); err != nil {
			return c, err
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return c, err
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), "link-") {
			err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
		}
	}
	for name, m := range c.Maps {
		if name[0] != '.' && !slices.Contains(transient, name) {
			err = errors.Join(err, m.Pin(filepath.Join(dir, name)))
		}
	}
	return c, err
}

// Succeeds tells whether an older version goes on until Apply.
func (d *Driver) Succeeds() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.succession.waits()
}

// Pinned are the names of what is pinned.
func (d *Driver) Pinned() (names []string, err error) {
	files, err := os.ReadDir(d.opts.dir())
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names, err
}

// ChangeLayout has the closed data path look as if a version with another layout had left it.
func ChangeLayout(opts Options) error {
	if err := opts.fill(); err != nil {
		return err
	}
	file := filepath.Join(opts.dir(), "frags")
	old, err := ebpf.LoadPinnedMap(file, nil)
	if err != nil {
		return err
	}
	defer old.Close()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: old.Type(), KeySize: old.KeySize(), ValueSize: old.ValueSize(), MaxEntries: 2 * old.MaxEntries()})
	if err != nil {
		return err
	}
	defer m.Close()
	return errors.Join(os.Remove(file), m.Pin(file))
}

// Turn gives the new maps their names, and leaves the older programs where they are.
func (d *Driver) Turn() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.switchOver(nil)
}
