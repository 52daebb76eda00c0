package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"golang.org/x/sys/unix"
)

// load is a stream of full-size UDP datagrams and what became of it.
type load struct {
	rate     float64 // bit/s of Ethernet frames
	duration time.Duration
}

type received struct {
	sent   int
	delays []time.Duration // of those that arrived, ascending
	span   time.Duration   // from the first to the last arrival
}

func (r received) quantile(q float64) time.Duration {
	if len(r.delays) == 0 {
		return 0
	}
	return r.delays[min(int(q*float64(len(r.delays))), len(r.delays)-1)]
}

func (r received) loss() float64 { return 1 - float64(len(r.delays))/float64(r.sent) }

// rate is the bit rate of arrivals, in Ethernet frames.
func (r received) rate() float64 { return float64(len(r.delays)-1) * frameSize * 8 / r.span.Seconds() }

func (r received) String() string {
	return fmt.Sprintf("sent %d, arrived %d, loss %.3f %%, rate %.1f Mbit/s, delay min %v, 1 %% %v, median %v, 99 %% %v, 99.9 %% %v, max %v",
		r.sent, len(r.delays), 100*r.loss(), r.rate()/1e6, r.quantile(0), r.quantile(0.01), r.quantile(0.5), r.quantile(0.99), r.quantile(0.999), r.quantile(1))
}

// udp opens a UDP socket inside a host; the caller closes it.
func udp(t *testing.T, l *Lab, host string, open func(fd int) error) int {
	t.Helper()
	var fd int
	err := inNetNS(l.NetNS(host), func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		return open(fd)
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// transfer sends the load from one host to an address of another.
func transfer(t *testing.T, l *Lab, from, to string, addr [4]byte, o load) received {
	t.Helper()
	const port = 9999
	in := udp(t, l, to, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return err
		}
		tv := unix.NsecToTimeval(int64(500 * time.Millisecond))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet4{Port: port})
	})
	defer unix.Close(in)
	out := udp(t, l, from, func(fd int) error { return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: addr}) })
	defer unix.Close(out)
	run(t, l, from, "ping", "-c1", "-w5", net.IP(addr[:]).String()) // neighbours
	sent := make(chan int)
	go func() { sent <- send(out, o) }()
	r := receive(in)
	r.sent = <-sent
	slices.Sort(r.delays)
	return r
}

func realtime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &ts)
	return ts.Nano()
}

// send sends what is due, sleeps 100 µs, and so on.
func send(fd int, o load) (sent int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	payload := make([]byte, frameSize-ethHeader-20-8)
	gap := frameSize * 8 / o.rate * 1e9
	start := realtime()
	for {
		now := realtime()
		if now-start > int64(o.duration) {
			return sent
		}
		for due := int(float64(now-start) / gap); sent < due; sent++ {
			binary.NativeEndian.PutUint64(payload, uint64(realtime()))
			if _, err := unix.Write(fd, payload); err != nil {
				break
			}
		}
		ts := unix.NsecToTimespec(int64(100 * time.Microsecond))
		_ = unix.Nanosleep(&ts, nil)
	}
}

const ethHeader = 14

// receive takes the kernel's time of each arrival until none came for half a
// second.
func receive(fd int) (r received) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	payload, control := make([]byte, 2048), make([]byte, 64)
	var first, last int64
	for {
		n, oobn, _, _, err := unix.Recvmsg(fd, payload, control, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			r.span = time.Duration(last - first)
			return r
		}
		if n < 8 || oobn < unix.SizeofCmsghdr+16 {
			continue
		}
		stamp := control[unix.SizeofCmsghdr:]
		last = int64(binary.NativeEndian.Uint64(stamp))*1e9 + int64(binary.NativeEndian.Uint64(stamp[8:]))
		if first == 0 {
			first = last
		}
		r.delays = append(r.delays, time.Duration(last-int64(binary.NativeEndian.Uint64(payload))))
	}
}

const measured = `
hosts:
  one: {interfaces: {eth0: [10.0.0.1/24]}}
  two: {interfaces: {eth0: [10.0.0.2/24]}}
links: [{a: one, b: two, %s}]`

var two = [4]byte{10, 0, 0, 2}

// TestLinkGigabit is the promise of the lab's links: at 1 Gbit/s of full-size
// frames, 50 ms of delay are 50 ms ± 1 ms and nothing is dropped. The link's
// own rate is higher, or the bursts of a sender that was kept waiting would
// queue, and be late rightly.
func TestLinkGigabit(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; this needs both cores for 10 s")
	}
	for _, e := range emulations(t) {
		t.Run(e, func(t *testing.T) {
			l := up(t, parse(t, fmt.Sprintf(measured, "delay: 50ms, rate: 10Gbit")), Options{Emulation: e})
			attempts(t, func() error {
				r := transfer(t, l, "one", "two", two, load{1e9, 10 * time.Second})
				t.Log(r)
				if r.sent < 800_000 {
					return fmt.Errorf("only %d frames could be sent; the machine is too busy to tell", r.sent)
				}
				if r.loss() > 0 {
					return fmt.Errorf("%.4f %% were lost; none should be", 100*r.loss())
				}
				return within(r, 50*time.Millisecond, 0.001, 0.999)
			})
		})
	}
}

// attempts measures until it succeeds, for a minute: what else runs on the machine can
// spoil measurements, and none here can succeed by chance.
func attempts(t *testing.T, measure func() error) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; {
		err := measure()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
		t.Log("again, because", err)
	}
}

// within checks that delays between two quantiles are want ± 1 ms.
func within(r received, want time.Duration, low, high float64) error {
	if d := r.quantile(low); d < want-time.Millisecond {
		return fmt.Errorf("%g %% took %v or less; %v was asked for", 100*low, d, want)
	}
	if d := r.quantile(high); d > want+time.Millisecond {
		return fmt.Errorf("%g %% took %v or more; %v was asked for", 100*(1-high), d, want)
	}
	return nil
}

// TestLinkDelay is the small form of TestLinkGigabit: other tests may run at
// the same time, so half the frames may be late. None is early.
func TestLinkDelay(t *testing.T) {
	for _, e := range emulations(t) {
		t.Run(e, func(t *testing.T) {
			l := up(t, parse(t, fmt.Sprintf(measured, "delay: 50ms, rate: 10Gbit, back: {delay: 20ms}")), Options{Emulation: e})
			attempts(t, func() error {
				r := transfer(t, l, "one", "two", two, load{100e6, time.Second})
				back := transfer(t, l, "two", "one", [4]byte{10, 0, 0, 1}, load{20e6, 500 * time.Millisecond})
				t.Logf("%v; back: %v", r, back)
				if r.loss()+back.loss() > 0 {
					return errors.New("frames were lost")
				}
				if r.quantile(0) < 50*time.Millisecond || back.quantile(0) < 20*time.Millisecond {
					t.Error("frames were early")
				}
				return errors.Join(within(r, 50*time.Millisecond, 0, 0.5), within(back, 20*time.Millisecond, 0, 0.5))
			})
		})
	}
}

func TestLinkRate(t *testing.T) {
	for _, e := range emulations(t) {
		for _, want := range []onpath.Rate{5e6, 50e6, 300e6} {
			t.Run(fmt.Sprint(e, "/", want), func(t *testing.T) {
				if want > 100e6 && os.Getenv("ONPATH_SOAK") == "" {
					t.Skip("ONPATH_SOAK is not set; this needs both cores")
				}
				l := up(t, parse(t, fmt.Sprintf(measured, "rate: "+want.String())), Options{Emulation: e})
				attempts(t, func() error {
					before := there(t, l)
					r := transfer(t, l, "one", "two", two, load{1.5 * float64(want), 1500 * time.Millisecond})
					t.Log(r)
					d := there(t, l)
					if n := int(d.Packets - before.Packets); d.Dropped == before.Dropped || n < len(r.delays) || n > len(r.delays)+16 {
						t.Errorf("%d arrived, and the link counts %+v, before %+v", len(r.delays), d, before)
					}
					if got := r.rate() / float64(want); math.Abs(got-1) > 0.02 {
						return fmt.Errorf("a link of %s carried %.3f times its rate", want, got)
					}
					return nil
				})
			})
		}
	}
}

// there is the status of the first link's first direction.
func there(t *testing.T, l *Lab) DirectionStatus {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Links[0].There
}

func TestLinkLoss(t *testing.T) {
	for _, e := range emulations(t) {
		for _, want := range []float64{0.01, 0.2} {
			t.Run(fmt.Sprint(e, "/", want), func(t *testing.T) {
				l := up(t, parse(t, fmt.Sprintf(measured, fmt.Sprintf("loss: %g%%, seed: 7, back: {loss: 0%%}", 100*want))), Options{Emulation: e})
				attempts(t, func() error {
					r := transfer(t, l, "one", "two", two, load{60e6, time.Second})
					t.Log(r)
					if sigma := math.Sqrt(want * (1 - want) / float64(r.sent)); math.Abs(r.loss()-want) > 5*sigma {
						return fmt.Errorf("lost %.4f of %d; %.4f ± %.4f was asked for", r.loss(), r.sent, want, 5*sigma)
					}
					return nil
				})
			})
		}
	}
}

// TestLinkTCP: bytes arrive intact through a link that loses segments out of
// frames that nobody has cut yet, in both directions and IP versions.
func TestLinkTCP(t *testing.T) {
	for _, e := range emulations(t) {
		for _, c := range []struct{ name, link, address string }{
			{"IPv4 lossy", "rate: 400Mbit, delay: 1ms, loss: 0.3%", "10.0.0.2"},
			{"IPv6 lossy", "rate: 400Mbit, delay: 1ms, loss: 0.3%", "fd00::2"},
			{"IPv4 slow", "rate: 40Mbit, delay: 5ms", "10.0.0.2"},
			{"IPv4 complete frames", "rate: 400Mbit, loss: 0.1%, offloads: off", "10.0.0.2"},
		} {
			t.Run(e+"/"+c.name, func(t *testing.T) {
				l := up(t, parse(t, fmt.Sprintf(`
hosts:
  one: {interfaces: {eth0: [10.0.0.1/24, "fd00::1/64"]}}
  two: {interfaces: {eth0: [10.0.0.2/24, "fd00::2/64"]}}
links: [{a: one, b: two, %s}]`, c.link)), Options{Emulation: e})
				echoTCP(t, l, c.address, 4<<20)
				s, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%+v", s.Links[0])
				if low := uint64(4 << 20 / 1448); s.Links[0].There.Packets < low || s.Links[0].Back.Packets < low {
					t.Errorf("fewer segments than the bytes fill, %d, are counted: %+v", low, s.Links[0])
				}
			})
		}
	}
}

// echoTCP sends random bytes from host one to two, which sends them back.
func echoTCP(t *testing.T, l *Lab, address string, size int) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	var server net.Listener
	var client net.Conn
	err := inNetNS(l.NetNS("two"), func() (err error) {
		server, err = net.Listen("tcp", net.JoinHostPort(address, "7"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		if c, err := server.Accept(); err == nil {
			_ = c.SetDeadline(deadline)
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	err = inNetNS(l.NetNS("one"), func() (err error) {
		client, err = net.DialTimeout("tcp", net.JoinHostPort(address, "7"), time.Minute)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_ = client.SetDeadline(deadline)
	want, got := make([]byte, size), make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(want)
	go func() { _, _ = client.Write(want) }()
	if n, err := io.ReadFull(client, got); err != nil {
		t.Fatalf("%d of %d bytes came back: %v", n, size, err)
	}
	if !bytes.Equal(got, want) {
		t.Error("other bytes came back than were sent")
	}
}
