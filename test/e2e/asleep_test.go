package e2e

import (
	"context"
	"encoding/binary"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// asleepYAML is a chain through a container that sleeps: it forwards once it listens.
const asleepYAML = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: napper}
spec:
  container:
    image: host
    addresses: none
    command:
    - perl
    - -MIO::Socket::INET
    - -e
    - $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 9000, Listen => 16) or die; close $c while $c = $s->accept;
  state: none
  packets: keep
  health: {tcp: 9000}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: napper}
spec:
  function: napper
  place: {cloudlets: [pop], nodes: {name: n1}}
  drain: 1s
  onDemand: {stopAfter: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: nap}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through:
  - {deployment: napper}
`

// TestAsleep: a chain through a sleeping container is proved; the container is woken by a SYN, which the client sends once, by
// datagrams, by pings, none of which is lost or overtaken; and sleeps again.
func TestAsleep(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	s, port := serveTCP(t, echo), udpEcho(t, "10.9.0.2")
	apply(ctx, t, asleepYAML)
	active(ctx, t, "nap")
	asleep := func() {
		t.Helper()
		if err := testbed.WaitFor(ctx, "the instance sleeps", time.Minute, func() (bool, error) {
			return napping(ctx)
		}); err != nil {
			t.Fatal(err)
		}
	}

	asleep()
	for _, live := range []bool{false, true} {
		p, err := api(t).Verify(ctx, nil, live)
		if err != nil || p.Verdict != onpath.VerdictProved || len(p.Chains) != 1 {
			t.Errorf("while its instance sleeps, the chain is not proved (live: %t): %+v, %v", live, p, err)
		}
	}
	began := time.Now()
	c, err := dialTCP(t, "10.9.0.2", s.port, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	took := time.Since(began)
	if again := retransmitted(t, c); again > uint32(took/time.Second) { // each second a client asks again
		t.Errorf("the client sent %d segments twice within %s", again, took)
	}
	t.Logf("connected %s after the first SYN", took)

	asleep()
	u := dialUDP(t, "10.9.0.2", port)
	defer u.Close()
	inOrder(t, u, 200, time.Millisecond)

	asleep()
	out := run(ctx, t, "client", "ping", "-c20", "-i0.02", "-W20", "10.9.0.2")
	last := 0
	for _, m := range pingReply.FindAllStringSubmatch(out, -1) {
		if m[1] != strconv.Itoa(last+1) {
			t.Errorf("ping %s was answered after %d", m[1], last)
		}
		last++
	}
	if last != 20 {
		t.Errorf("%d of 20 pings were answered:\n%s", last, out)
	}
}

var pingReply = regexp.MustCompile(`icmp_seq=(\d+) ttl`)

// napping reports whether the one instance of napper is ready and nothing of it runs.
func napping(ctx context.Context) (bool, error) {
	all, err := testbed.Instances(ctx)
	if err != nil {
		return false, err
	}
	for _, i := range all {
		if i.Spec.Deployment == "napper" {
			return i.Status.State == onpath.InstanceReady && i.Status.Reason == onpath.ReasonAsleep, nil
		}
	}
	return false, nil
}

// retransmitted is how many segments a connection has sent twice.
func retransmitted(t *testing.T, c *net.TCPConn) (n uint32) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			info, e := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if e != nil {
				t.Error(e)
				return
			}
			n = info.Total_retrans
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// inOrder sends numbered datagrams, and wants their echoes in order and whole.
func inOrder(t *testing.T, c *net.UDPConn, count int, pause time.Duration) {
	t.Helper()
	go func() {
		for n := range count {
			if _, err := c.Write(binary.BigEndian.AppendUint32(nil, uint32(n))); err != nil {
				return
			}
			time.Sleep(pause)
		}
	}()
	began := time.Now()
	b := make([]byte, 16)
	for n := range count {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		l, err := c.Read(b)
		if err != nil {
			t.Fatalf("of %d datagrams number %d does not come back: %v", count, n, err)
		}
		if n == 0 {
			t.Logf("the first datagram came back after %s", time.Since(began))
		}
		if got := binary.BigEndian.Uint32(b[:l]); got != uint32(n) {
			t.Fatalf("datagram %d came back, must be %d", got, n)
		}
	}
}
