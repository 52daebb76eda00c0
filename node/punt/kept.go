package punt

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
	"github.com/onpath/onpath/node/base"
)

// mostKept bounds what is kept for all sleeping instances of a node, bytes.
const mostKept = 64 << 20

// keptRoom is what is kept for all instances. A tenant may have as much of it as is left free,
// so that there is always some for another one.
type keptRoom struct {
	mu  sync.Mutex
	all int
	of  map[string]int // by tenant
}

// take adds bytes, or takes them away, unless a tenant would have too much.
func (r *keptRoom) take(tenant string, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && r.of[tenant]+n > mostKept-r.all-n {
		return false
	}
	r.all += n
	if r.of[tenant] += n; r.of[tenant] == 0 {
		delete(r.of, tenant)
	}
	return true
}

// Kept is what came for an instance since it fell asleep.
type Kept struct {
	come   chan struct{} // something is here
	port   *Port         // counts each packet that the instance will not get
	tenant string

	mu     sync.Mutex
	limit  int // bytes; 0: nothing is kept
	size   int
	frames []keptFrame
	// inlets are open from when the instance is ready: what still comes goes in at once.
	inlets map[onpath.VportID]onpath.Inlet
}

type keptFrame struct {
	vport onpath.VportID
	frame []byte
	about onpath.Tuple
	at    time.Time
}

// Comes tells that something is here.
func (k *Kept) Comes() <-chan struct{} { return k.come }

// First is the packet that came first, in words, and when it came.
func (k *Kept) First() (words string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.frames) == 0 {
		return "gone", time.Now()
	}
	t := k.frames[0].about
	from, to := netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort)
	return fmt.Sprintf("protocol %d, %s to %s", t.Protocol, from, to), k.frames[0].at
}

// Begin keeps what comes from now on, up to a limit.
func (k *Kept) Begin(limit onpath.Size) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shut()
	k.limit = int(limit)
	if len(k.frames) == 0 {
		select {
		case <-k.come:
		default:
		}
	}
}

// shut closes the inlets. Callers hold mu.
func (k *Kept) shut() {
	for _, in := range k.inlets {
		_ = in.Close()
	}
	k.inlets = nil
}

// add keeps a packet, or lets it in if the instance is ready.
func (k *Kept) add(p onpath.Punted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if in := k.inlets[p.Vport]; in != nil {
		if in.Deliver(p.Frame) != nil { // its device may go
			k.port.lose(p.Vport)
		}
		return
	}
	n := len(p.Frame) + onpath.HeldOverhead
	if k.size+n > k.limit || !k.port.room.take(k.tenant, n) {
		k.port.lose(p.Vport)
		return
	}
	k.size += n
	k.frames = append(k.frames, keptFrame{p.Vport, append([]byte(nil), p.Frame...), packet.Parse(p.Packet).Tuple, time.Now()})
	base.Kick(k.come)
}

// LetIn delivers all that is kept, and from then on what still comes; then nothing more comes.
func (k *Kept) LetIn(open func(onpath.VportID) (onpath.Inlet, error), vports []onpath.VportID) error {
	inlets, err := k.deliver(open, vports)
	for _, in := range inlets { // has add called
		err = errors.Join(err, in.Open())
	}
	return err
}

// deliver is letIn but for its end.
func (k *Kept) deliver(open func(onpath.VportID) (onpath.Inlet, error), vports []onpath.VportID) (map[onpath.VportID]onpath.Inlet, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.limit == 0 {
		return nil, nil
	}
	k.inlets = map[onpath.VportID]onpath.Inlet{}
	var first error
	for _, v := range vports {
		in, err := open(v)
		if err == nil {
			k.inlets[v] = in
		} else if first == nil {
			first = err
		}
	}
	for _, f := range k.frames {
		in := k.inlets[f.vport]
		if in == nil {
			k.port.lose(f.vport)
		} else if err := in.Deliver(f.frame); err != nil {
			k.port.lose(f.vport)
			if first == nil {
				first = err
			}
		}
	}
	k.drop()
	return maps.Clone(k.inlets), first
}

// drop forgets what is kept, and keeps no more. Callers hold mu.
func (k *Kept) drop() {
	k.port.room.take(k.tenant, -k.size)
	k.frames, k.size, k.limit = nil, 0, 0
}

// Empty drops all and keeps no more.
func (k *Kept) Empty() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shut()
	for _, f := range k.frames {
		k.port.lose(f.vport)
	}
	k.drop()
}
