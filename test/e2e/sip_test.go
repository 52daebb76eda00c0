package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kamailio is a SIP server at the origin.
type kamailio struct {
	t   *testing.T
	log string
}

func startKamailio(ctx context.Context, t *testing.T) *kamailio {
	t.Helper()
	for _, p := range []string{"kamailio", "sipp"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
	dir := t.TempDir()
	k := &kamailio{t, filepath.Join(dir, "log")}
	log, err := os.Create(k.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("kamailio", "-DD", "-E", "-f", "testdata/sip/kamailio.cfg", "-w", dir, "-Y", dir, "-m", "16", "-M", "4")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in(t, "origin", cmd.Start)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		ended := time.AfterFunc(5*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait()
		ended.Stop()
		if t.Failed() {
			t.Logf("kamailio said:\n%s", tail(k.said(), 20))
		}
	})
	err = testbed.WaitFor(ctx, "kamailio answers", 10*time.Second, func() (bool, error) {
		out, err := testbed.Exec(ctx, "origin", "ss", "-lunH", "sport = :5060")
		return len(out) > 0, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kamailio) said() string {
	b, err := os.ReadFile(k.log)
	if err != nil {
		k.t.Fatal(err)
	}
	return string(b)
}

// met is how many requests of a method reached the server.
func (k *kamailio) met(method string) int { return strings.Count(k.said(), "request "+method) }

// sipp has the client play a scenario so many times.
func sipp(ctx context.Context, t *testing.T, scenario string, calls int) {
	t.Helper()
	file, err := filepath.Abs("testdata/sip/" + scenario + ".xml")
	if err != nil {
		t.Fatal(err)
	}
	run(ctx, t, "client", "sipp", "-sf", file, "-i", "10.1.0.2", "-p", "5061", "-m", fmt.Sprint(calls), "-r", "100",
		"-nostdin", "-deadcall_wait", "0", "-timeout", "20s", "-timeout_error", "10.9.0.2:5060")
}

// applyExample applies an example whose flows need not drain long.
func applyExample(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile("../../examples/functions/" + name)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := filepath.Abs("../../functions")
	if err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, strings.NewReplacer("../../functions", functions, "none: bypass}", "none: bypass, drain: 1s}").Replace(string(text)))
}

// TestSIPKeepAlive: SIPp's keep-alives are answered before they reach Kamailio, and its
// calls reach it.
func TestSIPKeepAlive(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	k := startKamailio(ctx, t)
	sipp(ctx, t, "keepalive", 20)
	if k.met("OPTIONS") < 20 || k.met("NOTIFY") < 20 {
		t.Fatalf("without the module the server met %d OPTIONS and %d NOTIFY", k.met("OPTIONS"), k.met("NOTIFY"))
	}
	applyExample(ctx, t, "sip-keepalive.yaml")
	active(ctx, t, "sip-keepalive")
	ready(ctx, t, 1)
	options, notify := k.met("OPTIONS"), k.met("NOTIFY")
	sipp(ctx, t, "keepalive", 100)
	if more := k.met("OPTIONS") - options + k.met("NOTIFY") - notify; more != 0 {
		t.Errorf("%d of 200 keep-alives reached the server", more)
	}
	sipp(ctx, t, "call", 50)
	if n := k.met("INVITE"); n < 50 {
		t.Errorf("%d of 50 calls reached the server", n)
	}
}

// TestNetmonitor: what the module tells its collector is what the server met.
func TestNetmonitor(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	k := startKamailio(ctx, t)
	var collector *net.UDPConn
	in(t, "origin", func() (err error) {
		collector, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 9995})
		return err
	})
	defer collector.Close()
	applyExample(ctx, t, "netmonitor.yaml")
	active(ctx, t, "netmonitor")
	ready(ctx, t, 1)
	sipp(ctx, t, "keepalive", 50)
	want := uint64(k.met("OPTIONS") + k.met("NOTIFY"))
	client, origin := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.9.0.2")
	packets := map[[2]netip.Addr]uint64{}
	b := make([]byte, 2048)
	for deadline := time.Now().Add(5 * time.Second); packets[[2]netip.Addr{client, origin}] < want && time.Now().Before(deadline); {
		_ = collector.SetReadDeadline(deadline)
		n, from, err := collector.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatalf("the collector: %v; it knows %v", err, packets)
		}
		if from.Addr() == client || n%reportSize != 0 {
			t.Fatalf("the collector got %d bytes from %s", n, from)
		}
		for r := range bytesOf(b[:n], reportSize) {
			key := [2]netip.Addr{netip.AddrFrom16([16]byte(r[:16])).Unmap(), netip.AddrFrom16([16]byte(r[16:32])).Unmap()}
			packets[key] += binary.LittleEndian.Uint64(r[reportSize-16:])
		}
	}
	if there, back := packets[[2]netip.Addr{client, origin}], packets[[2]netip.Addr{origin, client}]; there != want || back == 0 || want < 100 {
		t.Errorf("the server met %d requests; the collector was told of %d there and %d back", want, there, back)
	}
}

// reportSize is sizeof(struct report) of netmonitor.c.
const reportSize = 56

func bytesOf(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) >= size && yield(b[:size]) {
			b = b[size:]
		}
	}
}
