package wiring

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// What an instance with a rate is sent, and what it sends, waits in a queue at either end
// of its devices (tbf), so that TCP finds the rate instead of losing what comes in bursts.
// The data path drops what the queues have no room for, and would drop what a program
// that takes away the queue in its own namespace sends above the rate.

// pace makes the queues of an instance's devices what its rate asks for.
func (r Wirer) pace(host, in *netlink.Handle, w Wiring) error {
	for _, p := range w.Ports() {
		for _, end := range []struct {
			h    *netlink.Handle
			name string
		}{{host, onpath.DeviceName(p.ID)}, {in, p.Inside}} {
			err := pace(end.h, end.name, w)
			if errors.Is(err, unix.ENOENT) && w.Rate != 0 {
				r.Log.Warn("the kernel has no queue that keeps a rate (sch_tbf); bursts above it are dropped", "instance", w.ID)
				return nil
			}
			if err != nil {
				return fmt.Errorf("limit device %s to %s/s: %w", end.name, onpath.Rate(w.Rate), err)
			}
		}
	}
	return nil
}

// etherHeader is what the kernel's queues count of a packet beside IP, in bytes.
const etherHeader = 14

// segmented is more than the largest packet of segments counts, in bytes. A queue whose
// burst is cut below what waits in front would stand still for ever.
const segmented = 128 << 10

func pace(h *netlink.Handle, device string, w Wiring) error {
	l, err := h.LinkByName(device)
	if err != nil {
		return err
	}
	attrs := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if w.Rate == 0 {
		err := h.QdiscDel(&netlink.Tbf{QdiscAttrs: attrs})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // none is there, or none of ours
			return nil
		}
		return err
	}
	frame := uint64(w.MTU + etherHeader)
	rate := max(w.Rate/8*frame/uint64(w.MTU), 1) // bytes of frames in a second, of whole packets
	burst := max(rate/500, segmented)            // 2 ms
	return h.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: attrs, Rate: rate, Buffer: netlink.Xmittime(rate, uint32(burst)),
		// What the data path lets wait, and room for the headers of short packets.
		Limit: uint32(min(2*onpath.RateBurst(w.Rate), 1<<31)),
	})
}
