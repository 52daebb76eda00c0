package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
)

// A succession is the way from the maps of an older version to those of this one,
// when a layout changed. The programs on the devices go on with the old ones,
// which nobody changes any more. The new ones are pinned beside them and filled
// field by field with what is known already, so that slots keep their meaning;
// the next Apply completes them. Then they get their names, and device by device
// the new program takes over: each packet at each device is handled by one of the
// two configurations, whole. Flow entries are in both, unless their layout changed: then flows are learnt anew.
// Where the flow table has another size alone, its entries are copied (resize.go).
//
// What dies in between leaves the old maps under their names, or all new ones.
type succession struct {
	dir  string
	maps map[string]*ebpf.Map // by name: new ones, pinned under nextPrefix

	resized *ebpf.Map     // the old flow table, whose entries are copied
	copied  uint64        // when that began: ns, monotonic
	bulk    chan struct{} // closed when all that there was then is copied
	bulkErr error
}

// nextPrefix is of the names of maps that wait for their turn; pastPrefix of those that
// programs of older versions go on with until they are replaced.
const (
	nextPrefix = "next-"
	pastPrefix = "past-"
)

// programMaps hold programs. The kernel empties such a map when its last pin is gone,
// whatever programs still use it.
var programMaps = []string{"stages", "fast_stages", "shards", "fast_shards"}

// firstToTurn gets its name first: as long as it waits, all do.
const firstToTurn = "stages"

// learnt maps are what packets left. The new programs share them with the old ones
// where their layout is the same; all others are anew in every succession.
var learnt = []string{
	flowsMap, pendingMap, natsMap, affinitiesMap, "frags", "stations", "quotas", "admissions", "hops", "hop_slots", "hops_taken",
	"prefilters", "vport_stats", "path_stats", "function_stats", "tenant_stats", "total_stats", "uplink_stats", "watch_stats",
}

// renamedMaps are those that older versions pinned under other names.
var renamedMaps = map[string]string{
	"holdings": "quotas", "paces": "admissions", "banks": "shards", "fast_banks": "fast_shards",
}

// renameMaps gives the maps of an older version the names that they have now. One that
// has an old name is younger than what has the new one: the older version ran last.
func renameMaps(dir string) error {
	for old, name := range renamedMaps {
		for _, prefix := range []string{"", nextPrefix, pastPrefix} {
			err := os.Rename(filepath.Join(dir, prefix+old), filepath.Join(dir, prefix+name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("give map %s of an older version the name %s: %w", old, name, err)
			}
		}
	}
	return nil
}

// goneMaps are those that older versions had, and this one has no use for.
var goneMaps = []string{"flows", "former", "lanes"}

// unfilled maps begin empty: their contents are other maps or programs, belong to
// one program, or are written anew as a whole.
var unfilled = []string{
	flowsMap, pendingMap, "stages", "fast_stages", "shards", "fast_shards", "scratch", "fast_runs", "frags", "watches", "watch_stats",
	"table_ids", "tables", "rules", "forests",
}

// succeed begins a succession if a pinned map has another layout than in the spec;
// nil if there is none.
func succeed(spec *ebpf.CollectionSpec, dir string) (*succession, error) {
	s := &succession{dir: dir, maps: map[string]*ebpf.Map{}}
	if err := s.endEarlier(); err != nil {
		return nil, err
	}
	changed, err := changedMaps(spec, dir)
	if err != nil || len(changed) == 0 {
		return nil, err
	}
	for name, m := range spec.Maps {
		if m.Pinning != ebpf.PinByName || slices.Contains(learnt, name) && !slices.Contains(changed, name) {
			continue
		}
		if err := s.replace(name, m); err != nil {
			return nil, errors.Join(err, s.abandon())
		}
	}
	return s, nil
}

// endEarlier ends what an earlier process began: it goes on if names were being
// given, else it is begun anew.
func (s *succession) endEarlier() error {
	waiting, err := filepath.Glob(filepath.Join(s.dir, nextPrefix+"*"))
	if err != nil || len(waiting) == 0 {
		return err
	}
	turn := !slices.Contains(waiting, s.next(firstToTurn))
	for _, f := range waiting {
		if turn {
			err = os.Rename(f, filepath.Join(s.dir, strings.TrimPrefix(filepath.Base(f), nextPrefix)))
		} else {
			err = os.Remove(f)
		}
		if err != nil {
			return fmt.Errorf("end the upgrade that an earlier process began: %w", err)
		}
	}
	return nil
}

func (s *succession) next(name string) string { return filepath.Join(s.dir, nextPrefix+name) }

// changedMaps are those that an older version pinned with another layout.
func changedMaps(spec *ebpf.CollectionSpec, dir string) ([]string, error) {
	var changed []string
	for name, want := range spec.Maps {
		if want.Pinning != ebpf.PinByName {
			continue
		}
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open pinned map %s: %w", name, err)
		}
		if !sameLayout(want, m) {
			changed = append(changed, name)
		}
		m.Close()
	}
	return changed, nil
}

func sameLayout(want *ebpf.MapSpec, m *ebpf.Map) bool {
	if want.Compatible(m) != nil {
		return false
	}
	now, known := specLayout(want)
	if !known {
		return true
	}
	was, known := pinnedLayout(m, now)
	return !known || now.key.equals(was.key) && now.value.equals(was.value)
}

// replace makes the new map of a name, pins and fills it.
func (s *succession) replace(name string, spec *ebpf.MapSpec) error {
	fresh := spec.Copy()
	fresh.Pinning = ebpf.PinNone
	m, err := ebpf.NewMap(fresh)
	if err != nil {
		return fmt.Errorf("make map %s beside that of an older version: %w", name, err)
	}
	s.maps[name] = m
	if err := m.Pin(s.next(name)); err != nil {
		return fmt.Errorf("pin map %s beside that of an older version: %w", name, err)
	}
	old, err := ebpf.LoadPinnedMap(filepath.Join(s.dir, name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pinned map %s: %w", name, err)
	}
	if resizes(name, spec, old) {
		s.resized = old
		return nil
	}
	defer old.Close()
	if slices.Contains(unfilled, name) {
		return nil
	}
	now, known := specLayout(spec)
	was, both := pinnedLayout(old, now)
	if !known || !both || old.Type() != spec.Type && name != natsMap { // those made room once, and do no more
		return nil
	}
	if err := fill(m, old, now, was); err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	return nil
}

// turn gives the new maps their names. Then nothing but the old programs, and the pins
// that forgetPast removes, holds the old ones.
func (s *succession) turn() error {
	names := []string{firstToTurn}
	for name := range s.maps {
		if name != firstToTurn {
			names = append(names, name)
		}
	}
	for _, name := range programMaps {
		// There is one where an earlier process died before all programs were replaced.
		if err := os.Link(filepath.Join(s.dir, name), filepath.Join(s.dir, pastPrefix+name)); err != nil &&
			!errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("keep map %s for programs of an older version: %w", name, err)
		}
	}
	for _, name := range names {
		err := os.Rename(s.next(name), filepath.Join(s.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it has it since an attempt before
			return fmt.Errorf("give map %s its name: %w", name, err)
		}
	}
	for _, name := range goneMaps {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove map %s of an older version: %w", name, err)
		}
	}
	for _, m := range s.maps {
		m.Close()
	}
	s.maps = nil
	return nil
}

// waits tells whether programs go on with the old maps, which have their names still.
func (s *succession) waits() bool { return s != nil && s.maps != nil }

// end lets go of the old maps: no program needs them any more.
func (s *succession) end(ctx context.Context, to *ebpf.Map) error {
	if s == nil {
		return nil
	}
	if err := s.copyFlows(ctx, to, s.copied); err != nil {
		return err
	}
	s.close()
	return nil
}

// forgetPast lets go of what older programs needed: none is on a device any more.
func forgetPast(dir string) error {
	for _, name := range programMaps {
		if err := os.Remove(filepath.Join(dir, pastPrefix+name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove map %s of an older version: %w", name, err)
		}
	}
	return nil
}

// abandon leaves everything as it was.
func (s *succession) abandon() error {
	var errs []error
	for name := range s.maps {
		if err := os.Remove(s.next(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	s.close()
	return errors.Join(errs...)
}

func (s *succession) close() {
	for _, m := range s.maps {
		m.Close()
	}
	if s.resized != nil {
		s.resized.Close()
	}
	s.maps, s.resized = nil, nil
}
