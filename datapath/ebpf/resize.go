package ebpf

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// keepSizes has pinned tables keep their size where another would lose entries: the flow
// table, if the wanted one is too small for what it holds, and that of translations in any
// case, because what changes while its halves are copied cannot be told from what was there.
// That of the node's own addresses never shrinks: nothing is gained by it.
func keepSizes(spec *ebpf.CollectionSpec, dir string, log *slog.Logger) error {
	for _, name := range []string{flowsMap, natsMap, localsMap} {
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
	if want.Name == localsMap {
		want.MaxEntries = m.MaxEntries()
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

// beginEntries begins to copy what the old flow table holds into the new one, which takes
// seconds: nobody waits for it but who needs the new one.
func (s *succession) beginEntries(ctx context.Context, wg *sync.WaitGroup, to *ebpf.Map) {
	if s == nil || s.resized == nil {
		return
	}
	s.copied, s.bulk = monotonic(), make(chan struct{})
	wg.Go(func() {
		defer close(s.bulk)
		s.bulkErr = s.copyAll(ctx, to)
	})
}

// awaitEntries waits until that is done. It needs no lock.
func (s *succession) awaitEntries(ctx context.Context) {
	if s == nil || s.bulk == nil {
		return
	}
	select {
	case <-s.bulk:
	case <-ctx.Done():
	}
}

// takeEntries has the new flow table begin with what the old one holds. Programs go on with
// the old one meanwhile: what packets have changed while the bulk was copied is copied once more.
func (s *succession) takeEntries(ctx context.Context, to *ebpf.Map) error {
	if s.resized == nil {
		return nil
	}
	if s.awaitEntries(ctx); s.bulkErr != nil {
		s.copied = monotonic()
		if err := s.copyAll(ctx, to); err != nil {
			return err
		}
	}
	return s.copyFlows(ctx, to, s.copied)
}

// copyAll copies all entries into a table that no program uses yet.
func (s *succession) copyAll(ctx context.Context, to *ebpf.Map) error {
	keys, values := make([]flowKey, 0, batch), make([]flowValue, 0, batch)
	put := func() error {
		_, err := to.BatchUpdate(keys, values, nil)
		for i := 0; errors.Is(err, ebpf.ErrNotSupported) && i < len(keys); i++ {
			if one := to.Put(keys[i], values[i]); one != nil || i == len(keys)-1 {
				err = one
			}
		}
		keys, values = keys[:0], values[:0]
		return err
	}
	var failed error
	err := eachFlow(ctx, s.resized, func(k *flowKey, v *flowValue) bool {
		if keys, values = append(keys, *k), append(values, *v); len(keys) == batch {
			failed = put()
		}
		return failed == nil
	})
	if err == nil && failed == nil && len(keys) > 0 {
		failed = put()
	}
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("copy flow entries into a table of another size: %w", err)
	}
	return nil
}

// copyFlows copies the entries of flows that a packet has met since a time (ns, monotonic).
// Once programs use the new table, an entry there stays unless the old one's is younger.
func (s *succession) copyFlows(ctx context.Context, to *ebpf.Map, since uint64) error {
	if s.resized == nil {
		return nil
	}
	var failed error
	err := eachFlow(ctx, s.resized, func(k *flowKey, v *flowValue) bool {
		now := monotonic()
		rests := idle(v.seen(), now)
		if rests > time.Duration(now-since)+2*time.Second { // entries tell seconds
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
