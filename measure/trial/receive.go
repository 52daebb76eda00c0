package trial

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// receiver is the receiving machine of one trial.
type receiver struct {
	part Part
	word []byte
	tcp  *net.TCPListener
	udp  *net.UDPConn
	all  int // sees every packet of the machine; -1: not open
	wg   sync.WaitGroup

	mu    sync.Mutex
	heard map[uint64]Packet
	flow  flow
}

// flow is what came of one stream, or of datagrams.
type flow struct {
	bytes     int64
	datagrams uint64
	highest   uint64 // number of a datagram, from 1
	begun     bool
	watch     stopwatch
	took      time.Duration // from the first to the last
}

// buffer is the sockets', in bytes: a sender without limit is faster than one reader for
// a moment.
const buffer = 4 << 20

func (r *receiver) open(m Machine) error {
	r.all = -1
	r.heard = map[uint64]Packet{}
	return netnsrun.Do(m.NetNS, func() (err error) {
		if r.tcp, err = net.ListenTCP("tcp", nil); err != nil {
			return fmt.Errorf("listen for a trial: %w", err)
		}
		if r.udp, err = net.ListenUDP("udp", nil); err != nil {
			return fmt.Errorf("listen for a trial: %w", err)
		}
		_ = r.udp.SetReadBuffer(buffer)
		if r.part.Kind != Network {
			return nil
		}
		if r.all, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL))); err != nil {
			r.all = -1
			return fmt.Errorf("see the machine's packets: %w", err)
		}
		return unix.SetsockoptTimeval(r.all, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (r *receiver) ports() Ports {
	return Ports{TCP: uint16(r.tcp.Addr().(*net.TCPAddr).Port), UDP: uint16(r.udp.LocalAddr().(*net.UDPAddr).Port)}
}

// close ends what is open; what was heard stays.
func (r *receiver) close() error {
	var errs []error
	if r.tcp != nil {
		errs = append(errs, r.tcp.Close())
	}
	if r.udp != nil {
		errs = append(errs, r.udp.Close())
	}
	r.wg.Wait()
	if r.all >= 0 {
		errs = append(errs, unix.Close(r.all))
	}
	return errors.Join(errs...)
}

// run hears until close; the result says what was heard.
func (r *receiver) run(ctx context.Context) func() *Result {
	over, stop := context.WithCancel(ctx)
	r.wg.Go(func() { defer stop(); r.accept() })
	r.wg.Go(r.datagrams)
	if r.all >= 0 {
		r.wg.Go(func() { r.hearAll(over) })
	}
	return r.result
}

func (r *receiver) accept() {
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for {
		c, err := r.tcp.Accept()
		if err != nil {
			return
		}
		if len(conns) == 8 { // strangers; the trial's own connection is the first
			_ = c.Close()
			continue
		}
		conns = append(conns, c)
		r.wg.Go(func() { r.stream(c) })
	}
}

// stream counts what comes behind the trial's word.
func (r *receiver) stream(c net.Conn) {
	w := make([]byte, wordLength)
	if _, err := io.ReadFull(c, w); err != nil || !bytes.Equal(w, r.word) {
		return
	}
	b := make([]byte, 256<<10)
	for {
		n, err := c.Read(b)
		if n > 0 {
			r.count(int64(n), 0)
		}
		if err != nil {
			return
		}
	}
}

func (r *receiver) count(n int64, number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.flow.begun {
		r.flow.begun, r.flow.watch = true, begin()
		if number == 0 {
			return // of a stream: what came at the first moment took no time
		}
	}
	r.flow.took = r.flow.watch.took()
	r.flow.bytes += n
	if number > 0 {
		r.flow.datagrams++
		r.flow.highest = max(r.flow.highest, number)
	}
}

// datagrams counts the trial's, and answers where round trips are measured.
func (r *receiver) datagrams() {
	b := make([]byte, 64<<10)
	for {
		n, from, err := r.udp.ReadFromUDPAddrPort(b)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		if n < wordLength+8 || !bytes.Equal(b[:wordLength], r.word) {
			continue
		}
		switch r.part.Kind {
		case RoundTrip:
			_, _ = r.udp.WriteToUDPAddrPort(b[:n], from)
		case Throughput:
			r.count(int64(n), binary.BigEndian.Uint64(b[wordLength:]))
		}
	}
}

// hearAll looks at every packet that the machine gets.
func (r *receiver) hearAll(ctx context.Context) {
	b := make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(r.all, b, 0)
		if err != nil {
			continue // nothing came for a while
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		number, ok := mark(b[:min(n, 256)], r.word)
		list := sorts()
		if !ok || number >= uint64(len(list)) {
			continue
		}
		r.hear(number, &list[number], b[:n])
	}
}

// hear notes a packet of the trial.
func (r *receiver) hear(number uint64, s *sort, b []byte) {
	t := Packet{Name: s.name, Size: s.size, Arrived: true}
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		t.Source, t.HopLimit = netip.AddrFrom4([4]byte(b[12:16])), int(b[8])
	case len(b) >= 40 && b[0]>>4 == 6:
		t.Source, t.HopLimit = netip.AddrFrom16([16]byte(b[8:24])), int(b[7])
	}
	if s.foreign && t.Source != foreignSource4 && t.Source != foreignSource6 {
		t.Arrived, t.Why = false, "it arrives as one of "+t.Source.String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard[number] = t
}

func (r *receiver) result() *Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	var t Result
	for i := range sorts() {
		if p, ok := r.heard[uint64(i)]; ok {
			t.Packets = append(t.Packets, p)
		}
	}
	if r.flow.took > 0 {
		t.Rate = float64(r.flow.bytes) * 8 / r.flow.took.Seconds()
	}
	if r.flow.highest > 0 {
		t.Lost = max(0, 1-float64(r.flow.datagrams)/float64(r.flow.highest))
	}
	return &t
}
