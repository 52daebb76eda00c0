package ebpf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// watchAddresses keeps the map of the node's own addresses true until ctx ends.
func (d *Driver) watchAddresses(ctx context.Context) error {
	updates := make(chan netlink.AddrUpdate, 64)
	handle := netns.NsHandle(int(d.ns.file.Fd()))
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{Namespace: &handle})
	if err != nil {
		return fmt.Errorf("watch addresses: %w", err)
	}
	if err := d.setAddresses(); err != nil {
		return err
	}
	d.done.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-updates:
				if !ok {
					return
				}
			}
			settle(updates)
			if err := d.refreshAddresses(); err != nil && ctx.Err() == nil {
				d.opts.Log.Warn("the node's own addresses may be steered", "error", err)
			}
		}
	})
	return nil
}

// settle swallows a burst of updates.
func settle(updates <-chan netlink.AddrUpdate) {
	for {
		select {
		case _, ok := <-updates:
			if !ok {
				return
			}
		case <-time.After(5 * time.Millisecond):
			return
		}
	}
}

func (d *Driver) refreshAddresses() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil // removed meanwhile
	}
	return errors.Join(d.setAddresses(), d.newEpoch())
}

// setAddresses writes the node's own addresses; d.mu is held.
func (d *Driver) setAddresses() error {
	k, err := look(d.ns.nl)
	if err != nil {
		return err
	}
	want := localAddresses(k)
	if err := d.maps.locals.putAll(want); err != nil {
		return err
	}
	return d.maps.locals.retain(want)
}
