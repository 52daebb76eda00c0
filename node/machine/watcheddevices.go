package machine

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
)

// watched are the devices to which the data path is attached, besides instances':
// what each is for → which one it is; "" if it is missing. A device that is made
// anew under its name is another one, and nothing is attached to it.
type watched map[string]string

const forTunnel = "tunnel"

func watchedOf(h *netlink.Handle, spec onpath.NodeSpec, underlay netlink.Link) watched {
	w := watched{forTunnel: identify(h, onpath.TunnelDevice)}
	if spec.Underlay.Address.IsValid() {
		at := "underlay " + spec.Underlay.Address.String()
		w[at] = ""
		if underlay != nil {
			w[at] = identityOf(underlay)
		}
	}
	for _, u := range spec.Uplinks {
		w["uplink "+u.Device] = identify(h, u.Device)
	}
	return w
}

func identify(h *netlink.Handle, device string) string {
	l, err := h.LinkByName(device)
	if err != nil {
		return ""
	}
	return identityOf(l)
}

func identityOf(l netlink.Link) string {
	a := l.Attrs()
	return fmt.Sprintf("%s %d %s", a.Name, a.Index, a.HardwareAddr)
}

// changed names what is another device than before, has gone or has come back. A
// tunnel device that has come is the data path's own work.
func (w watched) changed(before watched) (what []string) {
	for k, now := range w {
		was, known := before[k]
		if known && was != now && (k != forTunnel || was != "") {
			what = append(what, k)
		}
	}
	return what
}
