package e2e

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// awakeYAML is a chain beside asleepYAML's, through a container on the same machine that does
// not sleep.
const awakeYAML = `
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: awake}
spec:
  function: napper
  place: {cloudlets: [pop], nodes: {name: n1}}
  drain: 1s
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: awake}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: udp}]
  through:
  - {deployment: awake}
`

// TestAsleepFlood: 100,000 SYNs a second start a sleeping instance once, what the agent keeps
// of them is bounded, and a flow through an instance beside it loses nothing.
func TestAsleepFlood(t *testing.T) {
	idle(t)
	ctx := need(t, 3*time.Minute)
	s, port := serveTCP(t, echo), udpEcho(t, "10.9.0.2")
	apply(ctx, t, strings.TrimRight(asleepYAML, "\n")+"\n  select: [{protocol: tcp}]\n"+awakeYAML)
	active(ctx, t, "nap")
	active(ctx, t, "awake")
	if err := testbed.WaitFor(ctx, "the instance sleeps", 30*time.Second, func() (bool, error) { return napping(ctx) }); err != nil {
		t.Fatal(err)
	}
	other := startStream(t, "10.9.0.2", port, 1000)
	time.Sleep(time.Second)
	agent := strconv.Itoa(testbed.Pid("n1"))
	woken, before := strings.Count(testbed.Log("n1"), "reason=Woken"), memory(t, agent)
	const perSecond, seconds = 100_000, 10
	began := time.Now()
	in(t, "client", func() error { return flood(perSecond, seconds*perSecond) })
	took := time.Since(began)
	grown := memory(t, agent) - before
	sent, lost, longest := other.end()
	t.Logf("%d SYNs in %s; the agent's memory grew by %d KiB; of %d datagrams beside them %d were lost, the longest time without one %s",
		seconds*perSecond, took, grown, sent, lost, longest)
	if took > seconds*time.Second*11/10 {
		t.Errorf("this machine sends %.0f SYNs/s, must be %d", float64(seconds*perSecond)/took.Seconds(), perSecond)
	}
	if lost != 0 {
		t.Errorf("a flow beside the flood lost %d of %d: %s", lost, sent, other.when())
	}
	if grown > 32<<10 {
		t.Errorf("the agent's memory grew by %d KiB", grown)
	}
	if n := strings.Count(testbed.Log("n1"), "reason=Woken") - woken; n != 1 {
		t.Errorf("the instance was started %d times", n)
	}
	c, err := dialTCP(t, "10.9.0.2", s.port, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// memory is what a process has had of its own at most, KiB.
func memory(t *testing.T, pid string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	t.Fatal("the kernel does not tell VmHWM")
	return 0
}

// flood sends SYNs from the client to origin, each of another connection, a millisecond's at
// a time. Their sums are wrong: origin answers none.
func flood(perSecond, count int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 40)
	b[0], b[3], b[8], b[9] = 0x45, 40, 64, unix.IPPROTO_TCP
	copy(b[12:], []byte{10, 1, 0, 2})
	copy(b[16:], []byte{10, 9, 0, 2})
	b[32], b[33] = 0x50, 0x02
	to := &unix.SockaddrInet4{Addr: [4]byte{10, 9, 0, 2}}
	began := time.Now()
	for n := range count {
		if n%(perSecond/1000) == 0 {
			time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		}
		binary.BigEndian.PutUint16(b[20:], uint16(1024+n%60_000))
		binary.BigEndian.PutUint16(b[22:], uint16(100+n/60_000))
		if err := unix.Sendto(fd, b, 0, to); err != nil && err != unix.ENOBUFS {
			return err
		}
	}
	return nil
}
