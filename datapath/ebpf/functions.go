package ebpf

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpfobject"
)

// linked is a function that is, or shall be, part of the dispatcher.
type linked struct {
	spec   onpath.InlineFunction
	object *bpfobject.Object
	tables map[string]*ebpf.Map
	slot   uint32
	shard  uint32 // the dispatcher of its slot
}

func (l *linked) close() { bpfobject.CloseTables(l.tables) }

// link makes the configuration's functions part of the dispatcher, beside those in
// it that flows may still lead to. One that cannot be linked is left out, and its
// vport closed; all others go on. An error means that nothing changed.
func (d *Driver) link(c *onpath.DatapathConfig) error {
	next := maps.Clone(d.linked)
	fresh := map[onpath.VportID]*linked{}
	capacity, err := capacityOf(next)
	if err != nil {
		return err
	}
	d.linkErrs = map[onpath.VportID]string{}
	for _, f := range c.Functions {
		was := next[f.Vport]
		if was != nil && was.spec == f {
			continue
		}
		l, err := d.openFunction(f)
		if err != nil {
			d.linkErrs[f.Vport] = err.Error()
			d.opts.Log.Error("an ebpf function cannot be opened", "vport", f.Vport, "error", err)
			continue
		}
		if was != nil {
			capacity.add(was.shard, -len(was.tables)) // l takes its place, and stays where packets look for it
		}
		l.shard = capacity.take(len(l.tables), d.shardBefore(l.slot))
		fresh[f.Vport] = l
	}
	if len(fresh) == 0 {
		return nil
	}
	for id, l := range fresh {
		next[id] = l
	}
	if err := d.dispatch(next); err != nil {
		next = d.linkOneByOne(fresh)
	}
	for id, l := range d.linked {
		if next[id] != l {
			l.close()
		}
	}
	d.linked = next
	return nil
}

// linkOneByOne finds out which of the fresh functions cannot be linked.
func (d *Driver) linkOneByOne(fresh map[onpath.VportID]*linked) map[onpath.VportID]*linked {
	good := maps.Clone(d.linked)
	for _, id := range slices.Sorted(maps.Keys(fresh)) {
		before, had := good[id]
		good[id] = fresh[id]
		err := d.dispatch(good)
		if err == nil {
			continue
		}
		if delete(good, id); had {
			good[id] = before
		}
		fresh[id].close()
		d.linkErrs[id] = err.Error()
		d.opts.Log.Error("an ebpf function cannot be linked", "vport", id, "error", err)
	}
	return good
}

func (d *Driver) openFunction(f onpath.InlineFunction) (*linked, error) {
	code, err := os.ReadFile(f.Object)
	if err != nil {
		return nil, fmt.Errorf("read the object: %w", err)
	}
	o, err := bpfobject.Parse(code)
	if err != nil {
		return nil, err
	}
	if o.SHA256 != f.SHA256 {
		return nil, onpath.Errorf(onpath.CodeConflict, "%s is not the object that was checked", f.Object)
	}
	slot, fresh, err := d.slots.functions.take(f.Vport)
	if err != nil {
		return nil, err
	}
	if fresh {
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			return nil, fmt.Errorf("count CPUs: %w", err)
		}
		if err := d.coll.Maps["function_stats"].Put(slot, make([]functionCounters, cpus)); err != nil {
			return nil, fmt.Errorf("clear counters: %w", err)
		}
	}
	tables, err := o.OpenTables(f.Maps)
	if err != nil {
		return nil, err
	}
	return &linked{spec: f, object: o, tables: tables, slot: slot}, nil
}

// leaveFunctions lets flows go on by the rules that lead to functions which are
// configured no more, before these are gone.
func (d *Driver) leaveFunctions(want *state) error {
	gone := map[uint32]bool{}
	for slot := range d.maps.functions.now {
		if _, stays := want.functions[slot]; !stays {
			gone[slot] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	flows, err := d.cloneTables()
	if err != nil {
		return err
	}
	defer flows.close()
	return forgetSlots(d.life, flows, gone)
}

// unlink takes out what is configured no more. Its slot is given up once no flow
// entry names it: those that still do would run another's function.
func (d *Driver) unlink(want map[uint32]functionValue) error {
	gone := map[uint32]bool{}
	for id, l := range d.linked {
		if _, ok := want[l.slot]; !ok {
			gone[l.slot] = true
			l.close()
			delete(d.linked, id)
		}
	}
	for _, slot := range d.slots.functions.of {
		if _, ok := want[slot]; !ok {
			gone[slot] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if err := d.dispatch(d.linked); err != nil {
		d.opts.Log.Warn("a function that is gone stays in the dispatcher", "error", err)
	}
	flows, err := d.cloneTables()
	if err != nil {
		return err
	}
	defer flows.close()
	if err := forgetSlots(d.life, flows, gone); err != nil {
		return err
	}
	time.Sleep(underWay)
	if err := forgetSlots(d.life, flows, gone); err != nil {
		return err
	}
	d.slots.functions.retain(func(id onpath.VportID) bool { return !gone[d.slots.functions.of[id]] })
	return nil
}

// forgetSlots removes the entries that lead to functions which are gone.
func forgetSlots(ctx context.Context, flows flowTables, gone map[uint32]bool) error {
	var keys []flowKey
	leads := func(_ *flowKey, v *flowValue) bool {
		return slices.ContainsFunc(v.Functions[:], func(item uint8) bool { return item != 0 && gone[uint32(item&inlineSlot)] })
	}
	err := flows.each(ctx, func(k *flowKey, v *flowValue) bool {
		if leads(k, v) {
			keys = append(keys, *k)
		}
		return true
	})
	if err != nil {
		return err
	}
	return flows.remove(keys, leads)
}

// Functions implements onpath.FunctionReader.
func (d *Driver) Functions(context.Context) (map[onpath.VportID]onpath.FunctionCounters, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	c := &onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{}}
	if d.coll == nil {
		return nil, nil
	}
	err := d.readFunctions(c)
	return c.Functions, err
}

// readFunctions adds the functions' counters.
func (d *Driver) readFunctions(c *onpath.Counters) error {
	c.Functions = map[onpath.VportID]onpath.FunctionCounters{}
	for slot, f := range d.maps.functions.now {
		id := onpath.VportID(f.Vport)
		n, refused, err := d.readFunction(slot)
		if err != nil {
			return err
		}
		l := d.linked[id]
		n.Linked, n.Error = l != nil, d.linkErrs[id]
		c.Functions[id] = n
		v := c.Vports[id]
		v.In = n.Passed
		v.Out = total(n.Passed, n.Dropped, n.Answered)
		if refused > 0 {
			v.Dropped = map[onpath.DropReason]uint64{onpath.DropNoInstance: refused}
		}
		c.Vports[id] = v
	}
	for id, why := range d.linkErrs {
		n := c.Functions[id]
		n.Error = why
		c.Functions[id] = n
	}
	return nil
}

func total(list ...onpath.Tally) (out onpath.Tally) {
	for _, t := range list {
		out.Packets += t.Packets
		out.Bytes += t.Bytes
	}
	return out
}

func (d *Driver) readFunction(slot uint32) (n onpath.FunctionCounters, refused uint64, err error) {
	var perCPU []functionCounters
	if err := d.coll.Maps["function_stats"].Lookup(slot, &perCPU); err != nil {
		return n, 0, fmt.Errorf("read counters of function %d: %w", slot, err)
	}
	for i := range perCPU {
		p := &perCPU[i]
		n.Passed = total(n.Passed, onpath.Tally{Packets: p.PassedPackets, Bytes: p.PassedBytes})
		n.Dropped = total(n.Dropped, onpath.Tally{Packets: p.DroppedPackets, Bytes: p.DroppedBytes})
		n.Answered = total(n.Answered, onpath.Tally{Packets: p.AnsweredPackets, Bytes: p.AnsweredBytes})
		n.Bypassed = total(n.Bypassed, onpath.Tally{Packets: p.BypassedPackets, Bytes: p.BypassedBytes})
		n.Samples += p.Samples
		n.Time += p.Time
		refused += p.RefusedPackets
		for code, k := range p.Reasons {
			if k == 0 {
				continue
			}
			if n.Reasons == nil {
				n.Reasons = map[uint8]uint64{}
			}
			n.Reasons[uint8(code)] += k
		}
	}
	return n, refused, nil
}
