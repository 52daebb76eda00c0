package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
)

// fewestLocals is how many of the node's own addresses there is capacity for at least, with
// broadcast addresses.
const fewestLocals = 1 << 12

// sizeLocals has the data path take four times as many addresses as the machine has now. A
// machine with more needs a larger table, which the next start of the agent makes.
func sizeLocals(spec *ebpf.CollectionSpec, nl *netlink.Handle) error {
	k, err := look(nl)
	if err != nil {
		return err
	}
	spec.Maps[localsMap].MaxEntries = tableSize(max(4*len(localAddresses(k)), fewestLocals), 0)
	return nil
}

// refreshEvery is how often the node's own addresses are looked at though nobody told
// of a change. A variable for tests, as addressBuffer.
var refreshEvery = 5 * time.Second

// watchAddresses keeps the map of the node's own addresses true until ctx ends.
func (d *Driver) watchAddresses(ctx context.Context) error {
	if err := d.setAddresses(); onpath.CodeOf(err) == onpath.CodeNoCapacity {
		d.opts.Log.Warn("some of the node's own addresses may be steered", "error", err)
	} else if err != nil {
		return err
	}
	d.done.Go(func() {
		const least = 100 * time.Millisecond
		for pause := least; ctx.Err() == nil; pause = min(2*pause, refreshEvery) {
			begin := time.Now()
			if err := d.followAddresses(ctx); err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("the node's own addresses are followed anew; what was added meanwhile may be steered", "error", err)
			}
			if time.Since(begin) > refreshEvery {
				pause = least
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return nil
}

// addressBuffer is the room for the kernel's messages, in bytes: a burst that is longer
// ends the subscription.
var addressBuffer = 1 << 20

// followAddresses follows the kernel's messages until ctx ends or they do.
func (d *Driver) followAddresses(ctx context.Context) error {
	updates, done, failed := make(chan netlink.AddrUpdate, 64), make(chan struct{}), make(chan error, 1)
	handle := netns.NsHandle(int(d.ns.file.Fd()))
	err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{
		Namespace: &handle, ReceiveBufferSize: addressBuffer, ReceiveBufferForceSize: true,
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		close(done)
		return fmt.Errorf("watch addresses: %w", err)
	}
	defer func() {
		close(done)
		for range updates { // until the library's goroutine has ended
		}
	}()
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		// Also at first: what changed since the last look nobody has told.
		if err := d.refreshAddresses(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("watch addresses: %w", err)
		case <-tick.C:
		case _, ok := <-updates:
			if !ok {
				return errors.New("the kernel's notifications of addresses ended")
			}
			settle(updates)
		}
	}
}

// settle swallows a burst of updates, for a tenth of a second at most.
func settle(updates <-chan netlink.AddrUpdate) {
	enough := time.After(100 * time.Millisecond)
	for {
		select {
		case _, ok := <-updates:
			if !ok {
				return
			}
		case <-time.After(5 * time.Millisecond):
			return
		case <-enough:
			return
		}
	}
}

// refreshAddresses writes what has changed of the node's own addresses; flows that go by
// the fast path then find out anew.
func (d *Driver) refreshAddresses() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil // removed meanwhile
	}
	return d.setAddresses()
}

// setAddresses writes the node's own addresses; d.mu is held.
func (d *Driver) setAddresses() error {
	k, err := look(d.ns.nl)
	if err != nil {
		return err
	}
	m, want := d.maps.locals, localAddresses(k)
	for a := range want {
		d.maps.prefilter.addOwn(a.Addr)
	}
	if maps.Equal(m.now, want) {
		return nil
	}
	if most := int(m.m.MaxEntries()); len(want) > most {
		e := onpath.Errorf(onpath.CodeNoCapacity, "the machine has %d own and broadcast addresses; the data path has capacity for %d",
			len(want), most)
		e.Remedy = "start the agent again: it makes the table larger, and no packet is lost"
		m.putAll(want) // as many as it takes
		return e
	}
	return errors.Join(m.putAll(want), m.retain(want), d.newEpoch())
}
