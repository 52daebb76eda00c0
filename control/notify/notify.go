// Package notify collects what functions tell their owners: it fetches notifications from
// the nodes that accepted them, and keeps them in files, not in the store (GNFC §III-A:
// "stores the incoming notifications").
//
// A node has each on its disk before the function is told that it is accepted, and lets go
// of it once it is on disk here. What a node sends again, after either has died, is known
// by its number.
package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/spool"
	"github.com/onpath/onpath/internal/wholefile"
)

// What one tenant's notifications may take here; the oldest go.
const (
	mostBytes = 64 << 20
	mostAge   = 30 * 24 * time.Hour
)

// Hub reaches the nodes' sessions.
type Hub interface {
	Connected() []string
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Known reports whether there is a tenant of that name, and since when: what was told before
// is of a former one, and nobody's.
type Known func(tenant string) (since time.Time, known bool, err error)

// Keeper has the notifications of all tenants.
type Keeper struct {
	dir     string
	log     *slog.Logger
	now     func() time.Time
	known   Known
	mu      sync.Mutex
	tenants map[string]*shelf
	changed chan struct{} // closed when there are more
	hooks   []func([]onpath.Notification)
}

// shelf is one tenant's.
type shelf struct {
	mu    sync.Mutex
	spool *spool.Spool
	last  map[string]uint64 // by node: the number of the last one stored
}

// Open reads what the folder has.
func Open(dir string, log *slog.Logger, now func() time.Time, known Known) (*Keeper, error) {
	k := &Keeper{dir: dir, log: log, now: now, known: known, tenants: map[string]*shelf{}, changed: make(chan struct{})}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, there, err := known(e.Name()); err == nil && !there {
			if err := k.Forget(e.Name()); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := k.shelf(e.Name(), true); err != nil {
			return nil, fmt.Errorf("the notifications of tenant %s: %w", e.Name(), err)
		}
	}
	return k, nil
}

// shelf is a tenant's, made if it is to be; nil: there is none.
func (k *Keeper) shelf(tenant string, make bool) (*shelf, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.tenants[tenant]; s != nil || !make {
		return s, nil
	}
	if err := wholefile.Clean(filepath.Join(k.dir, tenant)); err != nil {
		return nil, err
	}
	sp, err := spool.Open(filepath.Join(k.dir, tenant), 0)
	if err != nil {
		return nil, err
	}
	s := &shelf{spool: sp, last: map[string]uint64{}}
	err = sp.Read(0, func(_ uint64, line []byte) error {
		var n onpath.Notification
		if json.Unmarshal(line, &n) == nil {
			s.note(n)
		}
		return nil
	})
	k.tenants[tenant] = s
	return s, err
}

// Forget deletes what is kept of a tenant that is deleted.
func (k *Keeper) Forget(tenant string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.tenants[tenant]
	delete(k.tenants, tenant)
	if s != nil {
		_ = s.spool.Close()
	}
	return os.RemoveAll(filepath.Join(k.dir, tenant))
}

// note notes which of its node's notifications the tenant has. Numbers of a node that began
// anew rise from 1 again, with another time of beginning in the id.
func (s *shelf) note(n onpath.Notification) {
	from, number := split(n.ID)
	s.last[from] = max(s.last[from], number)
}

func idOf(node, since string, number uint64) string {
	return fmt.Sprintf("%s.%s.%d", node, since, number)
}

func split(id string) (from string, number uint64) {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i] == '.' {
			_, _ = fmt.Sscan(id[i+1:], &number)
			return id[:i], number
		}
	}
	return id, 0
}

// Store keeps notifications that a node sent, and leaves out those that are here, those of
// no tenant, and what no function may say: a node's word is not believed.
func (k *Keeper) Store(node, since string, list []onpath.NumberedNotification) error {
	byTenant := map[string][]onpath.Notification{}
	for _, n := range list {
		said := n.Said
		said.ID, said.Node = idOf(node, since, n.Number), node
		if said.Validate() != nil {
			continue
		}
		byTenant[said.Tenant] = append(byTenant[said.Tenant], said)
	}
	for tenant, list := range byTenant {
		since, known, err := k.known(tenant)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(n onpath.Notification) bool { return n.Time.Before(since) })
		if !known || len(list) == 0 {
			continue
		}
		s, err := k.shelf(tenant, true)
		if err != nil {
			return err
		}
		fresh, err := s.add(list)
		if err != nil {
			return err
		}
		if err := s.spool.Trim(mostBytes, k.now().Add(-mostAge)); err != nil {
			k.log.Warn("old notifications stay", "tenant", tenant, "err", err)
		}
		for _, do := range k.hooks {
			do(fresh)
		}
	}
	k.mu.Lock()
	close(k.changed)
	k.changed = make(chan struct{})
	k.mu.Unlock()
	return nil
}

func (s *shelf) add(list []onpath.Notification) (fresh []onpath.Notification, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines [][]byte
	for _, n := range list {
		if from, number := split(n.ID); number <= s.last[from] {
			continue
		}
		b, err := json.Marshal(&n)
		if err != nil {
			return nil, err
		}
		lines, fresh = append(lines, b), append(fresh, n)
	}
	if len(lines) == 0 {
		return nil, nil
	}
	if _, err := s.spool.Append(lines...); err != nil {
		return nil, err
	}
	for _, n := range fresh {
		s.note(n)
	}
	return fresh, nil
}

// OnStored has a function called with what was stored; before Run only.
func (k *Keeper) OnStored(do func([]onpath.Notification)) { k.hooks = append(k.hooks, do) }

// List is what is stored, the latest last, by the nodes' clocks.
func (k *Keeper) List(f onpath.NotificationFilter) (out []onpath.Notification, err error) {
	for _, s := range k.meant(f.Tenant) {
		err := s.spool.Read(0, func(_ uint64, line []byte) error {
			var n onpath.Notification
			if json.Unmarshal(line, &n) == nil && f.Selects(&n) {
				out = append(out, n)
			}
			if f.Limit > 0 && len(out) > 4*f.Limit+1000 {
				out = slices.Delete(out, 0, len(out)-2*f.Limit)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(out, func(a, b onpath.Notification) int { return a.Time.Compare(b.Time) })
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[len(out)-f.Limit:]
	}
	return out, nil
}

func (k *Keeper) meant(tenant string) (list []*shelf) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, s := range k.tenants {
		if tenant == "" || name == tenant {
			list = append(list, s)
		}
	}
	return list
}

// more is closed when there are more.
func (k *Keeper) more() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// Follow calls yield for the latest f.Limit that are stored, if any are to be, and then for
// what is stored from then on, each once, until yield fails or ctx ends.
func (k *Keeper) Follow(ctx context.Context, f onpath.NotificationFilter, yield func(onpath.Notification) error) error {
	from := map[*shelf]uint64{}
	for _, s := range k.meant(f.Tenant) {
		from[s], _ = s.spool.Last()
	}
	told := map[string]bool{} // what comes while the stored ones are read is among both
	if f.Limit > 0 {
		list, err := k.List(f)
		for _, n := range list {
			if err := yield(n); err != nil {
				return err
			}
			told[n.ID] = true
		}
		if err != nil {
			return err
		}
	}
	for {
		more := k.more()
		for _, s := range k.meant(f.Tenant) {
			err := s.spool.Read(from[s], func(number uint64, line []byte) error {
				from[s] = number
				var n onpath.Notification
				if json.Unmarshal(line, &n) != nil || !f.Selects(&n) || told[n.ID] {
					return nil
				}
				return yield(n)
			})
			if err != nil {
				return err
			}
		}
		clear(told)
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
