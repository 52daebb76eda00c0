// Package tunnel has the node's end of WireGuard: its keys, its device and where its peers
// are. The data path sends VXLAN through the device, and the other node is one hop away.
package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/internal/wireguard"
	"github.com/onpath/onpath/node/base"
)

const (
	// keepAlive holds NAT and firewalls open, which may forget after 30 s.
	keepAlive = 20 * time.Second
	// lookEvery is the time between two looks at the device.
	lookEvery = time.Second
	// fresh is how old the last handshake may be: WireGuard makes one every two minutes.
	fresh = 3 * time.Minute
	// tryFor is how long an endpoint is tried before the next one, eager tries of a peer
	// that has never been heard of.
	tryFor = 3 * time.Second
	eager  = 4
)

// Tunnels is the node's end.
type Tunnels struct {
	part   *base.Part
	rounds *base.Rounds
	device *wireguard.Device
	lacks  string

	apply sync.Mutex  // serialises what is done to the device
	key   wgtypes.Key // private: it never leaves the node
	plan  *onpath.NodePlan
	gone  bool              // there is no device, nor anything left of one
	tries map[string]*tried // of peers of which there is no fresh handshake, by key

	failed    error // why it is not as the plan says
	since     time.Time
	complaint base.Complaint
}

// tried is where a peer was looked for.
type tried struct {
	count int
	since time.Time
}

// KeyFile has the node's private key.
func KeyFile(d base.Dir) string { return d.File("wireguard.key") }

// deviceOf is that of a node with a state folder.
func deviceOf(d base.Dir, netNS string) *wireguard.Device {
	return &wireguard.Device{Name: onpath.WireGuardDevice, NetNS: netNS, Dir: d.File("wireguard"), Program: "/proc/self/exe"}
}

// New makes one.
func New(p *base.Part, r *base.Rounds) *Tunnels {
	return &Tunnels{part: p, rounds: r, tries: map[string]*tried{}, lacks: wireguard.Lacks(), device: deviceOf(p.Dir, p.NetNS)}
}

// Open reads the node's key, or makes one.
func (t *Tunnels) Open() error {
	t.apply.Lock()
	defer t.apply.Unlock()
	text, err := os.ReadFile(KeyFile(t.part.Dir))
	if err == nil {
		t.key, err = wgtypes.ParseKey(strings.TrimSpace(string(text)))
	} else if errors.Is(err, fs.ErrNotExist) {
		if t.key, err = wgtypes.GeneratePrivateKey(); err == nil {
			err = wholefile.Write(KeyFile(t.part.Dir), []byte(t.key.String()+"\n"), 0o600)
		}
	}
	if err != nil {
		t.lacks = "its key cannot be read or kept: " + err.Error()
		return fmt.Errorf("the key of WireGuard %s: %w", KeyFile(t.part.Dir), err)
	}
	return nil
}

// Report says what the node can.
func (t *Tunnels) Report(r *onpath.NodeReport) {
	t.apply.Lock()
	defer t.apply.Unlock()
	r.TunnelLacks = t.lacks
	if t.failed != nil {
		r.Conditions = append(r.Conditions, onpath.Condition{Type: onpath.ConditionWireGuard, Status: onpath.False, Reason: "NotSet",
			Message: t.failed.Error(), Since: t.since})
	}
	if t.lacks == "" {
		r.TunnelKey = t.key.PublicKey().String()
	}
}

// Follow takes up a plan, before the data path does.
func (t *Tunnels) Follow(p *onpath.NodePlan) {
	t.apply.Lock()
	defer t.apply.Unlock()
	t.plan = p
	t.establish()
}

// Run looks after the device until ctx ends: a process that died is begun again, and peers that
// are not heard are looked for where they may be.
func (t *Tunnels) Run(ctx context.Context) {
	for t.part.Clock.Sleep(ctx, lookEvery) == nil {
		t.apply.Lock()
		t.establish()
		t.apply.Unlock()
	}
}

// establish has the device as the plan says. What fails is tried again. Callers hold apply.
func (t *Tunnels) establish() {
	if t.plan == nil || t.lacks != "" {
		return
	}
	err := t.put(&t.plan.Datapath)
	if (err == nil) != (t.failed == nil) {
		t.since = t.part.Clock.Now()
		base.Kick(t.part.ReportDue)
	}
	t.failed = err
	if message := fmt.Sprint(err); err != nil && t.complaint.Due(message, t.part.Clock.Now()) {
		t.part.Log.Error("the tunnels by WireGuard are not as they should be; they are tried again", "err", err)
	}
}

func (t *Tunnels) put(d *onpath.DatapathConfig) error {
	if !d.Inside.IsValid() {
		if t.gone {
			return nil
		}
		clear(t.tries)
		found, err := t.device.Remove()
		if t.gone = err == nil; found {
			t.rounds.Kick(true)
		}
		return err
	}
	t.gone = false
	made, err := t.device.Make(netip.PrefixFrom(d.Inside, 64), deviceMTU(d))
	if err != nil {
		return err
	}
	s, err := t.device.State()
	if err != nil {
		return err
	}
	c, err := t.change(d, s, t.part.Clock.Now())
	if err != nil {
		return err
	}
	if c != nil {
		if err := t.device.Set(*c); err != nil {
			return err
		}
	}
	if made {
		t.part.Log.Info("device of WireGuard is up", "device", t.device.Name, "address", d.Inside, "port", d.Underlay.WireGuardPort())
		t.rounds.Kick(true)
	}
	return nil
}

// deviceMTU is the largest that a peer's way carries.
func deviceMTU(d *onpath.DatapathConfig) int {
	mtu := onpath.MinMTU
	for _, p := range d.Peers {
		if p.Inside {
			mtu = max(mtu, p.MTU)
		}
	}
	return mtu
}

// change is what must be changed of a device; nil: nothing.
func (t *Tunnels) change(d *onpath.DatapathConfig, s *wgtypes.Device, now time.Time) (*wgtypes.Config, error) {
	var c wgtypes.Config
	changed := false
	if port := int(d.Underlay.WireGuardPort()); s.PrivateKey != t.key || s.ListenPort != port {
		c.PrivateKey, c.ListenPort, changed = &t.key, &port, true
	}
	there := map[string]*wgtypes.Peer{}
	for i := range s.Peers {
		there[s.Peers[i].PublicKey.String()] = &s.Peers[i]
	}
	wanted := map[string]bool{}
	for _, p := range d.Peers {
		if !p.Inside || p.Key == "" {
			continue
		}
		key, err := wgtypes.ParseKey(p.Key)
		if err != nil {
			return nil, fmt.Errorf("the key of node %s: %w", p.Node, err)
		}
		wanted[p.Key] = true
		if w := t.peer(key, p, there[p.Key], now); w != nil {
			c.Peers = append(c.Peers, w...)
			changed = true
		}
	}
	for key, w := range there {
		if !wanted[key] {
			c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: w.PublicKey, Remove: true})
			delete(t.tries, key)
			changed = true
		}
	}
	if !changed {
		return nil, nil
	}
	return &c, nil
}

// peer is what must be changed of a peer; nil: nothing.
func (t *Tunnels) peer(key wgtypes.Key, p onpath.Peer, there *wgtypes.Peer, now time.Time) []wgtypes.PeerConfig {
	alive := keepAlive
	w := wgtypes.PeerConfig{PublicKey: key, PersistentKeepaliveInterval: &alive, ReplaceAllowedIPs: true,
		AllowedIPs: []net.IPNet{{IP: p.Address.AsSlice(), Mask: net.CIDRMask(128, 128)}}}
	if there != nil && !there.LastHandshakeTime.IsZero() && now.Sub(there.LastHandshakeTime) < fresh {
		delete(t.tries, p.Key)
		if len(there.AllowedIPs) == 1 && there.AllowedIPs[0].IP.Equal(w.AllowedIPs[0].IP) {
			return nil
		}
		return []wgtypes.PeerConfig{w}
	}
	try := t.tries[p.Key]
	if try == nil {
		try = &tried{}
		t.tries[p.Key] = try
	}
	var ends []netip.AddrPort
	for _, e := range p.Endpoints {
		if e.IsValid() {
			ends = append(ends, e)
		}
	}
	switch {
	case there == nil:
	case len(ends) < 2 && there.Endpoint != nil, len(ends) == 0, now.Sub(try.since) < tryFor:
		return nil
	}
	if len(ends) > 0 {
		w.Endpoint = net.UDPAddrFromAddrPort(ends[try.count%len(ends)])
	}
	try.count++
	try.since = now
	if there != nil && there.LastHandshakeTime.IsZero() && try.count <= eager {
		// A peer is spoken to at once only when it is new to the device.
		return []wgtypes.PeerConfig{{PublicKey: key, Remove: true}, w}
	}
	return []wgtypes.PeerConfig{w}
}

// Remove takes device, process and key of a node off the machine.
func Remove(d base.Dir, netNS string) (found bool, err error) {
	found, err = deviceOf(d, netNS).Remove()
	if gone := os.Remove(KeyFile(d)); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return found, err
}
