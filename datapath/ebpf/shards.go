package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
)

// A program may use so many maps (the kernel's MAX_USED_MAPS). Functions bring
// tables of their own, so they are divided among dispatchers, the shards, which hand
// packets over to each other. The first one is entered from outside. Tests lower it.
var maxProgramMaps = 64

// shard is what one dispatcher is linked of, in the order of slots.
type shard struct {
	list []*linked
	fast bool // there is one at XDP as well
}

// capacity are how many maps each shard's dispatchers can still take.
type capacity struct {
	size int
	left map[uint32]int
}

// capacityOf counts what the functions leave in their shards.
func capacityOf(set map[onpath.VportID]*linked) (*capacity, error) {
	shared, err := dispatcherMaps()
	if err != nil {
		return nil, err
	}
	r := &capacity{size: maxProgramMaps - shared, left: map[uint32]int{}}
	for _, l := range set {
		r.add(l.shard, len(l.tables))
	}
	return r, nil
}

func (r *capacity) of(shard uint32) int {
	if n, ok := r.left[shard]; ok {
		return n
	}
	return r.size
}

func (r *capacity) add(shard uint32, tables int) { r.left[shard] = r.of(shard) - tables }

// take finds a shard for a function with so many tables: the one it had before, if
// it can, or the first.
func (r *capacity) take(tables int, before uint32) uint32 {
	at := before
	for shard := uint32(0); r.of(at) < tables && shard < maxFunctions; shard++ {
		at = shard // an empty one has room for what internal/bpfobject permits
	}
	r.add(at, tables)
	return at
}

// dispatcherMaps is how many maps a dispatcher uses without any function.
var dispatcherMaps = sync.OnceValues(func() (most int, err error) {
	spec, err := dispatcherSpec(0)
	if err != nil {
		return 0, err
	}
	for _, p := range spec.Programs {
		uses := p.Instructions.ReferenceOffsets()
		n := 0
		for name := range spec.Maps {
			if uses[name] != nil {
				n++
			}
		}
		most = max(most, n)
	}
	return most, nil
})

// shardBefore is the shard that a slot has in the kernel.
func (d *Driver) shardBefore(slot uint32) uint32 {
	return min(uint32(d.maps.functions.now[slot].Shard), maxFunctions-1)
}

// built are new dispatchers of one shard.
type built struct {
	shard
	at   uint32
	tc   *ebpf.Program
	xdp  *ebpf.Program // nil: the kernel refuses it
	kept bool          // it is in its place already
}

func (b *built) close() {
	if b.tc != nil {
		b.tc.Close()
	}
	if b.xdp != nil {
		b.xdp.Close()
	}
}

// dispatch builds dispatchers of the functions and puts them in their places; packets
// under way finish in the ones before. Where the kernel refuses one at XDP, tc runs
// all functions. What cannot be built changes nothing.
func (d *Driver) dispatch(set map[onpath.VportID]*linked) error {
	var all []*built
	defer func() {
		for _, b := range all {
			b.close() // the maps hold them
		}
	}()
	lists := shardsOf(set)
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(lists))) { // the first one leads to all others
		b, err := d.buildShard(at, lists[at])
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	whole := !slices.ContainsFunc(all, func(b *built) bool { return !b.fast })
	if err := d.putFast(all, whole); err != nil {
		return err
	}
	for _, b := range all {
		if err := d.putShard(b); err != nil {
			return err
		}
		d.shards[b.at] = b.shard
	}
	if !whole {
		delete(d.shards, 0) // so that it is built anew, and entered again once all others are there
	}
	return d.dropShards(lists)
}

// shardsOf divides functions by their shards; there is always the first one.
func shardsOf(set map[onpath.VportID]*linked) map[uint32][]*linked {
	lists := map[uint32][]*linked{0: nil}
	for _, l := range set {
		lists[l.shard] = append(lists[l.shard], l)
	}
	for _, list := range lists {
		slices.SortFunc(list, func(a, b *linked) int { return cmp.Compare(a.slot, b.slot) })
	}
	return lists
}

func (d *Driver) buildShard(at uint32, list []*linked) (*built, error) {
	b := &built{shard: shard{list: list}, at: at}
	if now, ok := d.shards[at]; ok && slices.Equal(now.list, list) {
		b.shard, b.kept = now, true
		return b, nil
	}
	var err error
	if b.tc, err = buildDispatcher(list, at, d.coll, dispatcherProgram); err != nil {
		return nil, err
	}
	if d.coll.Programs[fastProgram] == nil {
		b.fast = true // nothing is amiss
		return b, nil
	}
	if b.xdp, err = buildDispatcher(list, at, d.coll, fastDispatcherProgram); err != nil {
		d.opts.Log.Warn("functions do not run in the fast path; packets of their flows take the ordinary one", "error", err)
	}
	b.fast = b.xdp != nil
	return b, nil
}

// putFast puts the dispatchers at XDP in their places, or takes them off the fast
// path if they are not whole.
func (d *Driver) putFast(all []*built, whole bool) error {
	if d.coll.Programs[fastProgram] == nil {
		return nil
	}
	stages := d.coll.Maps["fast_stages"]
	if !whole {
		if err := stages.Delete(fastStageFunctions); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("take the dispatcher off the fast path: %w", err)
		}
	}
	for _, b := range all {
		if b.xdp == nil {
			continue
		}
		if err := d.coll.Maps["fast_shards"].Put(b.at, b.xdp); err != nil {
			return fmt.Errorf("put a dispatcher in its place at XDP: %w", err)
		}
		if b.at != 0 || !whole {
			continue
		}
		if err := stages.Put(fastStageFunctions, b.xdp); err != nil {
			return fmt.Errorf("put the dispatcher in its place at XDP: %w", err)
		}
	}
	return nil
}

func (d *Driver) putShard(b *built) error {
	if b.kept {
		return nil
	}
	if err := d.coll.Maps["shards"].Put(b.at, b.tc); err != nil {
		return fmt.Errorf("put a dispatcher in its place: %w", err)
	}
	if b.at != 0 {
		return nil
	}
	if err := d.coll.Maps["stages"].Put(stageFunctions, b.tc); err != nil {
		return fmt.Errorf("put the dispatcher in its place: %w", err)
	}
	return nil
}

// dropShards takes out dispatchers without functions, those of earlier processes
// included.
func (d *Driver) dropShards(lists map[uint32][]*linked) error {
	for at := range uint32(maxFunctions) {
		if _, ok := lists[at]; ok {
			continue
		}
		delete(d.shards, at)
		for _, name := range []string{"shards", "fast_shards"} {
			if err := d.coll.Maps[name].Delete(at); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("take a dispatcher out of its place: %w", err)
			}
		}
	}
	return nil
}
