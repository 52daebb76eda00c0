package vanish

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// End is one of the two ends of a relayed connection.
type End struct {
	Peer, Local netip.AddrPort
	Translator  *Translator // where its packets come in
	Ifindex     int         // by this device
}

// Vport is how packets get from one network namespace into the other: what is sent by the first
// end's device comes in at this one, in the other end's namespace.
type Vport struct {
	Ifindex int
	MACs    [12]byte // of a frame that comes in there: to, from
}

// Connection is a relayed connection that may lose its relay. All bytes that are moved are counted.
type Connection struct {
	sockets [2]syscall.RawConn
	ends    [2]End // since TakeOver
	port    *Vport // nil: both ends are in one network namespace

	// moving is held for reading while bytes move, and whole while numbers are read.
	moving sync.RWMutex

	mu          sync.Mutex
	read, wrote [2]uint32  // bytes, by end
	sent        [2]*uint32 // number of the first byte that the relay wrote
	noted       bool
}

// New returns a connection of which nothing has been relayed yet, by the sockets toward its ends.
func New(sockets [2]syscall.RawConn) *Connection {
	c := &Connection{sockets: sockets}
	for i := range sockets {
		c.noteSent(i)
	}
	return c
}

// Move runs a function that does not wait and moves bytes out of the socket of an end, or into it.
func (c *Connection) Move(end int, out bool, do func() int) int {
	if c == nil {
		return do()
	}
	c.moving.RLock()
	defer c.moving.RUnlock()
	n := do()
	if n <= 0 {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if out {
		c.read[end] += uint32(n)
	} else {
		c.wrote[end] += uint32(n)
	}
	return n
}

// on runs a function with the descriptor of an end's socket.
func (c *Connection) on(end int, do func(fd int) error) error {
	var err error
	failed := c.sockets[end].Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(failed, err)
}

// noteSent learns the number of the first byte written to an end, if that is possible now. Nothing
// moves meanwhile.
func (c *Connection) noteSent(end int) {
	if c.sent[end] != nil {
		return
	}
	_ = c.on(end, func(fd int) error {
		_, state, err := info(fd)
		if err != nil || state != established {
			return err
		}
		n, err := written(fd)
		if err == nil {
			n -= c.wrote[end]
			c.sent[end] = &n
		}
		return err
	})
}

// Stay is why a relay stays in a connection.
type Stay string

func (s Stay) Error() string { return "the relay stays: " + string(s) }

// Reasons.
const (
	StayClosing    Stay = "the connection closes"
	StayTimestamps Stay = "one half alone has timestamps"
	StaySACK       Stay = "one half alone has selective acknowledgements"
	StayECN        Stay = "one half alone has explicit congestion notification"
	StaySegments   Stay = "segments of one half are too large for the other"
	StayUnsent     Stay = "the relay never had everything sent"
	StayUnseen     Stay = "packets of the connection come in another way"
	StayKernel     Stay = "the kernel does not have what it needs"
)

const (
	observeFor = 3 * time.Second
	firstLook  = time.Millisecond
	lastLook   = 20 * time.Millisecond
	// late is how long a packet may be between the translator and the socket.
	late = 300 * time.Millisecond
	// margin is by how much translated timestamps are ahead of the relay's own.
	margin = 1 << 16
)

// TakeOver has packets go by the translator from some instant on, and returns when the sockets hold
// nothing more. They have to be closed by Silence then. Meanwhile bytes are moved as before. A Stay
// says that nothing has changed; any other error, that the connection is broken.
func (c *Connection) TakeOver(ctx context.Context, ends [2]End, port *Vport) error {
	c.ends, c.port = ends, port
	traits, err := c.suits()
	if err == nil {
		err = c.observe(ctx)
	}
	if err == nil {
		c.shorten(ctx)
	}
	var h [2]Half
	if err == nil {
		h, err = c.change(traits)
	}
	if err != nil {
		c.Forget()
		return err
	}
	return c.drain(ctx, h)
}

// suits checks that the halves speak alike.
func (c *Connection) suits() (t [2]Traits, err error) {
	for i := range c.ends {
		var state uint8
		if err := c.on(i, func(fd int) (err error) { t[i], state, err = info(fd); return err }); err != nil {
			return t, StayClosing
		}
		if state != established {
			return t, StayClosing
		}
	}
	switch {
	case t[0].Timestamps != t[1].Timestamps:
		return t, StayTimestamps
	case t[0].SACK != t[1].SACK:
		return t, StaySACK
	case t[0].ECN != t[1].ECN:
		return t, StayECN
	// What stands between may have announced less for both, and no end sends more than it takes.
	case min(t[0].TakeMSS, t[0].SendMSS) > t[1].SendMSS || min(t[1].TakeMSS, t[1].SendMSS) > t[0].SendMSS:
		return t, StaySegments
	}
	return t, nil
}

func (c *Connection) key(end int) Key {
	return NewKey(c.ends[end].Ifindex, c.ends[end].Peer, c.ends[end].Local)
}

// crossing is the half at the vport.
func (c *Connection) crossing() Key { return NewKey(c.port.Ifindex, c.ends[1].Local, c.ends[1].Peer) }

const (
	// shortQueue is how many bytes the relay may hold when the translator takes over: the end that they
	// are from hears nothing until they have arrived, and must not take that for a loss.
	shortQueue = 128 << 10
	shortenFor = 500 * time.Millisecond
)

// shorten waits until the relay holds few bytes. It takes no more than it can send, and announces a
// small window meanwhile.
func (c *Connection) shorten(ctx context.Context) {
	for i := range c.ends {
		_ = c.on(i, func(fd int) error { return hurry(fd, shortQueue) })
	}
	ctx, cancel := context.WithTimeout(ctx, shortenFor)
	defer cancel()
	for {
		most := 0
		for i := range c.ends {
			_ = c.on(i, func(fd int) error { most = max(most, waiting(fd)); return nil })
		}
		if most <= shortQueue || wait(ctx, lastLook/4) != nil {
			return
		}
	}
}

// own is the half of what the socket of an end sends while it drains. It names the half by which
// packets of the other end pass the same translator.
func (c *Connection) own(end int) (*Translator, Key, Half) {
	at := NewKey(c.ends[end].Ifindex, c.ends[end].Local, c.ends[end].Peer)
	at.Ifindex |= leaving
	other, in := c.key(1-end), c.ends[1].Translator
	if c.port != nil && end == 0 {
		at.Ifindex = uint32(c.port.Ifindex)
	}
	if c.port != nil && end == 1 {
		other = c.crossing()
	}
	return in, at, Half{State: Own, OutIfindex: other.Ifindex, Src: other.Src, Dst: other.Dst, Sport: other.Sport, Dport: other.Dport}
}

// hasNoOwn deletes these.
func (c *Connection) hasNoOwn() {
	for i := range c.ends {
		in, at, _ := c.own(i)
		in.Delete(at)
	}
}

// observe waits until packets of both ends have been seen where they should come in.
func (c *Connection) observe(ctx context.Context) error {
	for i, e := range c.ends {
		if err := e.Translator.Put(c.key(i), Half{State: Observe}); err != nil {
			return StayKernel
		}
	}
	c.mu.Lock()
	c.noted = true
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, observeFor)
	defer cancel()
	for look := firstLook; ; look = min(look*2, lastLook) {
		seen := 0
		for i, e := range c.ends {
			if h, ok := e.Translator.Get(c.key(i)); ok && h.Packets > 0 {
				seen++
			}
		}
		if seen == len(c.ends) {
			return nil
		}
		if wait(ctx, look) != nil {
			return StayUnseen
		}
	}
}

// change has packets go by the translator.
func (c *Connection) change(traits [2]Traits) (h [2]Half, err error) {
	c.moving.Lock()
	defer c.moving.Unlock()
	var first, received, clock [2]uint32 // number of the first byte read; of the next one to come
	for i, e := range c.ends {
		if c.noteSent(i); c.sent[i] == nil {
			return h, StayUnsent
		}
		seen, ok := e.Translator.Get(c.key(i))
		if !ok {
			return h, StayUnseen
		}
		h[i].SeenStamp, h[i].SeenAck = seen.SeenStamp, seen.SeenAck
		err := c.on(i, func(fd int) (err error) {
			var read uint32
			if received[i], read, err = taken(fd); err != nil {
				return err
			}
			first[i] = read - c.read[i]
			if clock[i], err = clockOf(fd); err != nil {
				return err
			}
			_, state, err := info(fd) // a FIN has a number, too
			if err == nil && state != established {
				err = StayClosing
			}
			return err
		})
		if errors.Is(err, StayClosing) {
			return h, StayClosing
		}
		if err != nil {
			return h, StayKernel
		}
	}
	for i := range c.ends {
		j := 1 - i
		h[i].SeqAdd = *c.sent[j] - first[i]
		h[i].TSAdd = clock[j] + margin - h[i].SeenStamp
		h[i].State, h[i].Flags = Drain, flagClamp
		h[i].ShiftIn, h[i].ShiftOut = traits[i].SendScale, traits[j].TakeScale
		to := NewKey(c.ends[j].Ifindex, c.ends[j].Local, c.ends[j].Peer)
		h[i].Src, h[i].Dst, h[i].Sport, h[i].Dport = to.Src, to.Dst, to.Sport, to.Dport
		h[i].OutIfindex, h[i].OtherIfindex = to.Ifindex, to.Ifindex
	}
	for i := range c.ends {
		j := 1 - i
		h[i].AckAdd, h[i].EchoAdd = -h[j].SeqAdd, -h[j].TSAdd
		h[i].EchoFloor = h[j].SeenStamp + h[j].TSAdd
	}
	if c.port != nil {
		h[0].OutIfindex, h[0].OtherIfindex, h[1].OtherIfindex = uint32(c.ends[0].Ifindex), 0, 0
		h[1].OutIfindex, h[1].Out, h[1].MACs = uint32(c.port.Ifindex), Into, c.port.MACs
		forward := Half{State: Forward, OutIfindex: uint32(c.ends[1].Ifindex), SeenAck: h[0].SeenAck + h[0].AckAdd}
		if err := c.ends[1].Translator.Put(c.crossing(), forward); err != nil {
			return h, StayKernel
		}
	}
	for i := range c.ends {
		in, at, half := c.own(i)
		if err := in.Put(at, half); err != nil {
			return h, StayKernel
		}
	}
	owns(&h, received)
	if err := c.put(h); err != nil {
		return h, err
	}
	return h, c.refresh(&h) // of what came in meanwhile
}

// owns writes up to where the sockets have taken bytes, and so the end of what they send.
func owns(h *[2]Half, received [2]uint32) {
	for i := range h {
		h[i].OwnSeq, h[i].OwnAck = received[i], received[1-i]+h[1-i].SeqAdd
	}
}

func (c *Connection) put(h [2]Half) error {
	return errors.Join(c.ends[0].Translator.Put(c.key(0), h[0]), c.ends[1].Translator.Put(c.key(1), h[1]))
}

// refresh notes what the sockets have taken since. Nothing moves meanwhile.
func (c *Connection) refresh(h *[2]Half) error {
	var received [2]uint32
	for i := range c.ends {
		err := c.on(i, func(fd int) (err error) { received[i], _, err = taken(fd); return err })
		if err != nil {
			return err
		}
	}
	if received == [2]uint32{h[0].OwnSeq, h[1].OwnSeq} {
		return nil
	}
	owns(h, received)
	return c.put(*h)
}

// drain waits until the sockets hold nothing.
func (c *Connection) drain(ctx context.Context, h [2]Half) error {
	for look := firstLook; ; look = min(look*2, lastLook) {
		if err := wait(ctx, look); err != nil {
			return err
		}
		done, err := c.hasDrained(&h)
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	for i := range h {
		h[i].State = Translate
		if seen, ok := c.ends[i].Translator.Get(c.key(i)); ok {
			h[i].Over |= seen.Over
			h[i].Packets, h[i].Bytes, h[i].Seen, h[i].SeenAck = seen.Packets, seen.Bytes, seen.Seen, seen.SeenAck
		}
	}
	if err := c.put(h); err != nil {
		return err
	}
	_ = wait(ctx, late)
	c.hasNoOwn()
	return nil
}

func (c *Connection) hasDrained(h *[2]Half) (bool, error) {
	c.moving.Lock()
	defer c.moving.Unlock()
	if err := c.refresh(h); err != nil {
		return false, err
	}
	done := true
	for i := range c.ends {
		err := c.on(i, func(fd int) error {
			_, state, err := info(fd)
			if finReceived[state] {
				h[i].Over |= Finished
			}
			done = done && empty(fd)
			return err
		})
		if err != nil {
			return false, err
		}
	}
	return done && c.read[0] == c.wrote[1] && c.read[1] == c.wrote[0], nil
}

// Silence has the sockets close without a word.
func (c *Connection) Silence() error {
	c.moving.Lock()
	defer c.moving.Unlock()
	var errs []error
	for i := range c.ends {
		errs = append(errs, c.on(i, silence))
	}
	return errors.Join(errs...)
}

// Forget takes the translation away. The kernel resets what comes then, if no socket has it.
func (c *Connection) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.noted {
		return
	}
	c.noted = false
	for i, e := range c.ends {
		e.Translator.Delete(c.key(i))
	}
	c.hasNoOwn()
	if c.port != nil {
		c.ends[1].Translator.Delete(c.crossing())
	}
}
