package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// keepSizes has pinned tables keep their size where another would lose entries: the flow
// table, if the wanted one is too small for what it holds, and that of translations in any
// case, because what changes while its halves are copied cannot be told from what was there.
func keepSizes(spec *ebpf.CollectionSpec, dir string, log *slog.Logger) error {
	for _, name := range []string{flowsMap, natsMap} {
		want := spec.Maps[name]
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if err != nil {
			continue // there is none, or succeed says what is wrong
		}
		same := want.Copy()
		same.MaxEntries = m.MaxEntries()
		if sameLayout(same, m) {
			err = keepSize(want, m, log)
		}
		m.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func keepSize(want *ebpf.MapSpec, m *ebpf.Map, log *slog.Logger) error {
	if want.Name == natsMap {
		if want.MaxEntries > m.MaxEntries() {
			log.Warn("the table of translations keeps its size, less than that of flows asks for; onpath node off makes it anew",
				"asked", want.MaxEntries, "kept", m.MaxEntries())
		}
		want.MaxEntries = m.MaxEntries()
		return nil
	}
	if want.MaxEntries >= m.MaxEntries() {
		return nil
	}
	held := 0
	err := eachFlow(context.Background(), m, func(*flowKey, *flowValue) bool { held++; return true })
	if err == nil && float64(held) > pressed*float64(want.MaxEntries) {
		log.Warn("the table of flows keeps its size: a smaller one has too little capacity for the entries in use",
			"entries", held, "flows", m.MaxEntries(), "wanted", want.MaxEntries)
		want.MaxEntries = m.MaxEntries()
	}
	return err
}

// resizes tells whether a pinned map is the flow table, and differs from the wanted one in its
// size alone.
func resizes(name string, want *ebpf.MapSpec, m *ebpf.Map) bool {
	same := want.Copy()
	same.MaxEntries = m.MaxEntries()
	return name == flowsMap && want.MaxEntries != m.MaxEntries() && sameLayout(same, m)
}

// takeEntries has the new flow table begin with what the old one holds. Programs go on with
// the old one meanwhile: what packets change while the bulk is copied is copied once more.
func (s *succession) takeEntries(ctx context.Context, to *ebpf.Map) error {
	s.copied = monotonic()
	if err := s.copyFlows(ctx, to, 0); err != nil {
		return err
	}
	return s.copyFlows(ctx, to, s.copied)
}

// copyFlows copies the entries of flows that a packet has met since a time (ns, monotonic), or
// all. Once programs use the new table, an entry there stays unless the old one's is younger.
func (s *succession) copyFlows(ctx context.Context, to *ebpf.Map, since uint64) error {
	if s.resized == nil {
		return nil
	}
	var failed error
	now := monotonic()
	recent := time.Duration(now-since) + 2*time.Second // entries tell seconds
	err := eachFlow(ctx, s.resized, func(k *flowKey, v *flowValue) bool {
		rests := idle(v.seen(), now)
		if since != 0 && rests > recent {
			return true
		}
		var there flowValue
		if !s.waits() && to.Lookup(k, &there) == nil && idle(there.seen(), now) <= rests {
			return true
		}
		failed = to.Put(k, v)
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("copy flow entries into a table of another size: %w", err)
	}
	return nil
}

// flowTable is where programs have the established flows, whose new table is given: the old
// one until they take over.
func (s *succession) flowTable(fresh *ebpf.Map) (*ebpf.Map, error) {
	switch {
	case !s.waits() || s.maps[flowsMap] == nil:
		return fresh, nil
	case s.resized != nil:
		return s.resized, nil
	}
	return nil, onpath.Errorf(onpath.CodeUnavailable, "flow entries have another layout until the next configuration is complete")
}
