package loadbalancer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath/sdk"
)

// Tables of loadbalancer.bpf.c.
const (
	backendsTable = "backends"
	behindTable   = "behind"
	slotsTable    = "table"
)

func (v *backendValue) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(v.Addr).Unmap(), binary.BigEndian.Uint16(v.Port[:]))
}

// readBackends gives what stands in the places of backends.
func readBackends(m *ebpf.Map) ([]backendValue, error) {
	out := make([]backendValue, backendPlaces)
	for place := range out {
		if err := m.Lookup(uint32(place), &out[place]); err != nil {
			return nil, fmt.Errorf("read the backends: %w", err)
		}
	}
	return out, nil
}

// write puts the configuration in force: the backends' places first, then the
// tables that are not in use, then the words that say which are. A backend that is
// named no more keeps its place, and its flows until they begin anew; new flows do not choose it.
func (b *balance) write(tables sdk.Tables) error {
	now, err := readBackends(tables[backendsTable])
	if err != nil {
		return err
	}
	places, err := b.place(tables, now)
	if err != nil {
		return err
	}
	var four, six []candidate
	for i, t := range b.targets {
		if now[places[i]].Alive == 0 {
			continue
		}
		c := candidate{t.addr.String(), uint16(places[i]), t.weight}
		if t.addr.Addr().Is4() {
			four = append(four, c)
		} else {
			six = append(six, c)
		}
	}
	var was balanceConfig
	if err := tables[sdk.ConfigTable].Lookup(uint32(0), &was); err != nil {
		return fmt.Errorf("read the configuration in force: %w", err)
	}
	c := b.config
	c.Table4, c.Table6 = freeTables(&was)
	if err := writeSlots(tables[slotsTable], c.Table4, maglev(four)); err != nil {
		return err
	}
	if err := writeSlots(tables[slotsTable], c.Table6, maglev(six)); err != nil {
		return err
	}
	return tables[sdk.ConfigTable].Put(uint32(0), c)
}

// place gives every target a place; now is what stands in all of them, and is kept
// true.
func (b *balance) place(tables sdk.Tables, now []backendValue) ([]int, error) {
	named := map[netip.AddrPort]bool{}
	for _, t := range b.targets {
		named[t.addr] = true
	}
	var last uint32
	for i := range now {
		last = max(last, now[i].ID)
	}
	if err := leave(tables, now, func(v *backendValue) bool { return !named[v.addrPort()] }); err != nil {
		return nil, err
	}
	places := make([]int, len(b.targets))
	for i, t := range b.targets {
		at := slices.IndexFunc(now, func(v backendValue) bool { return v.ID != 0 && v.addrPort() == t.addr })
		if at < 0 {
			if at = freePlace(now, named); now[at].ID != 0 {
				if err := forgetBackend(tables, uint32(at), &now[at]); err != nil {
					return nil, err
				}
			}
			last++
			now[at] = backendValue{Addr: t.addr.Addr().As16(), Alive: 1, ID: last}
			binary.BigEndian.PutUint16(now[at].Port[:], t.addr.Port())
		}
		places[i] = at
		if !b.check.on {
			now[at].Alive = 1
		}
		now[at].Leaves = 0
		if t.weight == 0 {
			now[at].Leaves = 1
		}
		if err := tables[backendsTable].Put(uint32(at), now[at]); err != nil {
			return nil, fmt.Errorf("write backend %s: %w", t.addr, err)
		}
		k := behindKey{Addr: now[at].Addr, Port: now[at].Port}
		var port uint32 // network order, in the low half
		if t.addr.Port() != 0 {
			port = uint32(binary.NativeEndian.Uint16(b.config.Ports[0][:]))
		}
		if err := tables[behindTable].Put(k, port); err != nil {
			return nil, fmt.Errorf("write backend %s: %w", t.addr, err)
		}
	}
	return places, nil
}

// leave has backends take no new flows.
func leave(tables sdk.Tables, now []backendValue, which func(*backendValue) bool) error {
	for i := range now {
		if now[i].ID == 0 || now[i].Leaves != 0 || !which(&now[i]) {
			continue
		}
		now[i].Leaves = 1
		if err := tables[backendsTable].Put(uint32(i), now[i]); err != nil {
			return fmt.Errorf("write backend %s: %w", now[i].addrPort(), err)
		}
	}
	return nil
}

// drained waits for as long as flows may stay with backends that are named no more, then
// takes the flows from these: without checks nobody tells whether they still live.
func (b *balance) drained(ctx context.Context, tables sdk.Tables, say func(string, ...any)) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(b.drain):
	}
	now, err := readBackends(tables[backendsTable])
	if err != nil {
		say("backends that are named no more keep their flows: %v", err)
		return
	}
	for i := range now {
		v := &now[i]
		if v.ID == 0 || v.Alive == 0 || slices.ContainsFunc(b.targets, func(t target) bool { return t.addr == v.addrPort() }) {
			continue
		}
		v.Alive = 0
		if err := tables[backendsTable].Put(uint32(i), *v); err != nil {
			say("backend %s keeps its flows: %v", written(v.addrPort()), err)
			continue
		}
		say("backend %s is named no more: its flows go to others", written(v.addrPort()))
	}
}

// freePlace is an empty place, or else that of the backend which was named first
// and is named no more. There are twice as many places as backends may be named.
func freePlace(now []backendValue, named map[netip.AddrPort]bool) int {
	best := -1
	for i := range now {
		if now[i].ID == 0 {
			return i
		}
		if !named[now[i].addrPort()] && (best < 0 || now[i].ID < now[best].ID) {
			best = i
		}
	}
	return best
}

func forgetBackend(tables sdk.Tables, place uint32, v *backendValue) error {
	err := tables[behindTable].Delete(behindKey{Addr: v.Addr, Port: v.Port})
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	return cmp.Or(err, tables[backendsTable].Put(place, backendValue{}))
}

// freeTables gives the first rows of the two tables, one for each IP version, that
// are not in force.
func freeTables(was *balanceConfig) (four, six uint32) {
	if was.Table4 == 0 {
		return 2 * tableRows, 3 * tableRows
	}
	return 0, tableRows
}

func writeSlots(m *ebpf.Map, first uint32, slots []uint16) error {
	for row := range uint32(tableRows) {
		var v rowValue
		copy(v[:], slots[row*tableRow:min(int(row+1)*tableRow, len(slots))])
		if err := m.Put(first+row, v); err != nil {
			return fmt.Errorf("write the look-up table: %w", err)
		}
	}
	return nil
}

// health is what a load balancer's checks know of one backend.
type health struct {
	row int // of checks that contradict what is believed
	at  string
}

// written is a backend as configurations write it: one with the port that was dialled
// has none of its own.
func written(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// watch checks the backends until the context ends, those included that are named
// no more and may have flows. say tells what changes.
func (b *balance) watch(ctx context.Context, tables sdk.Tables, say func(format string, args ...any)) {
	known := map[uint32]*health{} // by the backend's id
	tick := time.NewTicker(b.check.every)
	defer tick.Stop()
	said := "" // of what is in the way
	for {
		err := b.checkAll(ctx, tables, known, say)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && said != "":
			said = ""
			say("backends are checked again")
		case err != nil && err.Error() != said:
			said = err.Error()
			say("backends cannot be checked: %v", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkAll checks each backend once and writes what changed.
func (b *balance) checkAll(ctx context.Context, tables sdk.Tables, known map[uint32]*health, say func(string, ...any)) error {
	now, err := readBackends(tables[backendsTable])
	if err != nil {
		return err
	}
	errs := make([]error, len(now))
	var done sync.WaitGroup
	for i := range now {
		if now[i].ID != 0 {
			done.Go(func() { errs[i] = b.dial(ctx, now[i].addrPort()) })
		}
	}
	done.Wait()
	if ctx.Err() != nil {
		return nil
	}
	changed := false
	for i := range now {
		v := &now[i]
		if v.ID == 0 {
			continue
		}
		h := known[v.ID]
		if h == nil {
			h = &health{at: written(v.addrPort())}
			known[v.ID] = h
		}
		if (errs[i] == nil) == (v.Alive != 0) {
			h.row = 0
			continue
		}
		h.row++
		up := v.Alive == 0
		if up && h.row < b.check.rises || !up && h.row < b.check.failures {
			continue
		}
		v.Alive = 1 - v.Alive
		if err := tables[backendsTable].Put(uint32(i), *v); err != nil {
			return fmt.Errorf("write backend %s: %w", h.at, err)
		}
		h.row, changed = 0, true
		if up {
			say("backend %s is up", h.at)
		} else {
			say("backend %s is down: %v", h.at, errs[i])
		}
	}
	if !changed {
		return nil
	}
	return b.write(tables)
}

func (b *balance) dial(ctx context.Context, a netip.AddrPort) error {
	d := net.Dialer{Timeout: b.check.timeout}
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a.Addr(), b.probed(a)).String())
	if err != nil {
		return err
	}
	return c.Close()
}
