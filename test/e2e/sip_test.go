package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/engine/control"
)

// kamailio is a SIP server at the origin.
type kamailio struct {
	t    *testing.T
	log  string
	kill func()
}

func startKamailio(ctx context.Context, t *testing.T) *kamailio {
	t.Helper()
	for _, p := range []string{"kamailio", "sipp"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
	dir := t.TempDir()
	k := &kamailio{t: t, log: filepath.Join(dir, "log")}
	log, err := os.Create(k.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("kamailio", "-DD", "-E", "-f", "testdata/sip/kamailio.cfg", "-w", dir, "-Y", dir, "-m", "16", "-M", "4")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in(t, "origin", cmd.Start)
	k.kill = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		ended := time.AfterFunc(5*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait()
		ended.Stop()
		if t.Failed() {
			t.Logf("kamailio said:\n%s", tail(k.said(), 200))
		}
	})
	err = testbed.WaitFor(ctx, "kamailio answers", time.Minute, func() (bool, error) {
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

// sipp has the client play a scenario so many times, from one of its addresses.
func sipp(ctx context.Context, t *testing.T, from, scenario string, calls int) {
	t.Helper()
	file, err := filepath.Abs("testdata/sip/" + scenario + ".xml")
	if err != nil {
		t.Fatal(err)
	}
	run(ctx, t, "client", "sipp", "-sf", file, "-i", from, "-p", "5061", "-m", fmt.Sprint(calls), "-r", "100",
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

const sipClient = "10.1.0.2"

// TestSIPKeepAlive: SIPp's keep-alives are answered before they reach Kamailio, but for
// signs of life that the module asks for; its calls reach it. Nobody answers for a dead one.
func TestSIPKeepAlive(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	k := startKamailio(ctx, t)
	sipp(ctx, t, sipClient, "keepalive", 20)
	if k.met("OPTIONS") < 20 || k.met("NOTIFY") < 20 {
		t.Fatalf("without the module the server met %d OPTIONS and %d NOTIFY", k.met("OPTIONS"), k.met("NOTIFY"))
	}
	applyExample(ctx, t, "sip-keepalive.yaml")
	active(ctx, t, "sip-keepalive")
	ready(ctx, t, 1)
	keepAlives := func() int { return k.met("OPTIONS") + k.met("NOTIFY") }
	// Until the gateway knows that the instance is ready, packets go past it.
	err := testbed.WaitFor(ctx, "the module answers a keep-alive", time.Minute, func() (bool, error) {
		before := keepAlives()
		sipp(ctx, t, sipClient, "keepalive", 1)
		return keepAlives() == before, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before := keepAlives()
	sipp(ctx, t, sipClient, "keepalive", 100)
	if more := keepAlives() - before; more > 8 { // one in five seconds, and what comes until it is answered
		t.Errorf("%d of 200 keep-alives reached the server; the engines of n1 say:%s", more, engines(ctx, "n1"))
	}
	sipp(ctx, t, sipClient, "call", 50)
	if n := k.met("INVITE"); n < 50 {
		t.Errorf("%d of 50 calls reached the server", n)
	}
	k.kill()
	time.Sleep(5 * time.Second) // the module asks so often
	var c *net.UDPConn
	in(t, "client", func() (err error) {
		c, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 5060})
		return err
	})
	defer c.Close()
	for range 10 {
		_, _ = c.Write([]byte("\r\n\r\n")) // an earlier one may have been refused
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := c.Read(make([]byte, 100)); err == nil {
			t.Errorf("a keep-alive to a dead server was answered with %d bytes", n)
		}
	}
}

// sipEnd is one end of SIP on UDP: who sends requests again until they are answered, answers
// those of others, and knows which came.
type sipEnd struct {
	c    *net.UDPConn
	name string
	mu   sync.Mutex
	// came has the requests by Call-ID, sent those of which no answer has come.
	came, sent map[string]string
	others     int // answers in this end's name that the module gave to what is not its
	alive      int // keep-alives that the module answered
}

func (e *sipEnd) listen() {
	b := make([]byte, 2048)
	for {
		n, from, err := e.c.ReadFromUDPAddrPort(b)
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		text := string(b[:n])
		_, id, _ := strings.Cut(text, "Call-ID: ")
		id, _, _ = strings.Cut(id, "\r\n")
		e.mu.Lock()
		switch {
		case strings.HasPrefix(text, "SIP/2.0 200") && strings.Contains(text, "tag=onpath"):
			if e.alive++; e.sent[id] != "" {
				e.others++
			}
		case strings.HasPrefix(text, "SIP/2.0 200"):
			delete(e.sent, id)
		case id != "":
			e.came[id] = text
			reply := "SIP/2.0 200 OK\r\nTo: <sip:b@b>;tag=" + e.name + "\r\nCall-ID: " + id + "\r\nContent-Length: 0\r\n\r\n"
			_, _ = e.c.WriteToUDPAddrPort([]byte(reply), from)
		}
		e.mu.Unlock()
	}
}

// notify sends a NOTIFY, which is sent again until it is answered.
func (e *sipEnd) notify(to netip.AddrPort, id, event, body string) string {
	text := "NOTIFY sip:b@b SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.2;branch=z9\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:b@b>;tag=2\r\n" +
		"Call-ID: " + id + "\r\nCSeq: 5 NOTIFY\r\n" + event + "\r\nSubscription-State: active\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n\r\n" + body
	e.mu.Lock()
	e.sent[id] = text
	e.mu.Unlock()
	_, _ = e.c.WriteToUDPAddrPort([]byte(text), to)
	return text
}

// again sends what is not answered.
func (e *sipEnd) again(to func(id string) netip.AddrPort) (left int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, text := range e.sent {
		_, _ = e.c.WriteToUDPAddrPort([]byte(text), to(id))
	}
	return len(e.sent)
}

// TestNotifiesUnderLoad: a REFER's NOTIFY and a message-summary, in both directions, reach
// their ends as they were sent, among thousands of keep-alives a second that the module answers.
func TestNotifiesUnderLoad(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	long, pause := 2*time.Second, 200*time.Millisecond
	if os.Getenv("ONPATH_SOAK") != "" {
		long, pause = 60*time.Second, 100*time.Millisecond
	}
	applyExample(ctx, t, "sip-keepalive.yaml")
	active(ctx, t, "sip-keepalive")
	ready(ctx, t, 1)
	open := func(host, address string, port int) *sipEnd {
		e := &sipEnd{name: host, came: map[string]string{}, sent: map[string]string{}}
		in(t, host, func() (err error) {
			e.c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(address), Port: port})
			return err
		})
		_ = e.c.SetReadBuffer(4 << 20)
		t.Cleanup(func() { e.c.Close() })
		go e.listen()
		return e
	}
	server, at := open("origin", "10.9.0.2", 5060), netip.MustParseAddrPort("10.9.0.2:5060")
	agentAt := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(sipClient), uint16(20_000+i))
	}
	agents := make([]*sipEnd, 64)
	for i := range agents {
		agents[i] = open("client", sipClient, 20_000+i)
	}
	alive := "OPTIONS sip:b@b SIP/2.0\r\nVia: SIP/2.0/UDP 10.1.0.2;branch=z9\r\nFrom: <sip:a@b>;tag=1\r\n" +
		"To: <sip:b@b>\r\nCall-ID: alive\r\nCSeq: 5 OPTIONS\r\n\r\n"
	err := testbed.WaitFor(ctx, "the module answers a keep-alive", time.Minute, func() (bool, error) {
		_, _ = agents[0].c.WriteToUDPAddrPort([]byte(alive), at)
		time.Sleep(20 * time.Millisecond)
		agents[0].mu.Lock()
		defer agents[0].mu.Unlock()
		return agents[0].alive > 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const sipfrag = "SIP/2.0 180 Ringing\r\n"
	const summary = "Messages-Waiting: yes\r\nVoice-Message: 2/8 (0/2)\r\n"
	sent, keepAlives := make([]map[string]string, len(agents)), 0
	for i := range sent {
		sent[i] = map[string]string{}
	}
	back := map[string]string{} // by the server
	for begin, round := time.Now(), 0; time.Since(begin) < long; round++ {
		for i, a := range agents {
			for range 10 {
				_, _ = a.c.WriteToUDPAddrPort([]byte(alive), at)
				keepAlives++
			}
			id := fmt.Sprintf("%d-%d", i, round)
			sent[i]["refer-"+id] = a.notify(at, "refer-"+id, "Event: refer;id=93809824", sipfrag)
			sent[i]["waiting-"+id] = a.notify(at, "waiting-"+id, "o: message-summary", summary)
			back["back-"+id] = server.notify(agentAt(i), "back-"+id, "Event: message-summary", summary)
			back["done-"+id] = server.notify(agentAt(i), "done-"+id, "Event: refer", sipfrag)
		}
		time.Sleep(pause)
	}
	err = testbed.WaitFor(ctx, "each NOTIFY is answered", time.Minute, func() (bool, error) {
		left := server.again(func(id string) netip.AddrPort {
			var i int
			_, _ = fmt.Sscan(strings.Split(id, "-")[1], &i)
			return agentAt(i)
		})
		for _, a := range agents {
			left += a.again(func(string) netip.AddrPort { return at })
		}
		return left == 0, nil
	})
	if err != nil {
		t.Error(err)
	}
	answered, others, wrong, arrived := 0, 0, 0, map[string]string{}
	for i, a := range agents {
		a.mu.Lock()
		answered, others = answered+a.alive, others+a.others
		maps.Copy(arrived, a.came)
		a.mu.Unlock()
		server.mu.Lock()
		for id, text := range sent[i] {
			if server.came[id] != text {
				wrong++
			}
		}
		server.mu.Unlock()
	}
	for id, text := range back {
		if arrived[id] != text {
			wrong++
		}
	}
	t.Logf("of %d keep-alives the module answered %d; %d NOTIFYs went in each direction", keepAlives, answered, len(back))
	if others != 0 || wrong != 0 || len(back) == 0 {
		t.Errorf("%d NOTIFYs are answered by the module, %d do not arrive as they were sent", others, wrong)
	}
	if answered < keepAlives/2 { // some pass, when the server was not heard for five seconds
		t.Errorf("there was no load: of %d keep-alives the module answered %d", keepAlives, answered)
	}
}

// TestNetmonitor: what the module tells its collector is what crossed, retransmissions
// and errors too, as the server's host counts it.
func TestNetmonitor(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	k := startKamailio(ctx, t)
	c := collect(t)
	applyExample(ctx, t, "netmonitor.yaml")
	active(ctx, t, "netmonitor")
	ready(ctx, t, 1)
	client, other, origin := netip.MustParseAddr(sipClient), netip.MustParseAddr("10.1.0.77"), netip.MustParseAddr("10.9.0.2")
	// Until the gateway knows that the instance is ready, packets go past it.
	err := testbed.WaitFor(ctx, "the module tells of a packet", time.Minute, func() (bool, error) {
		run(ctx, t, "client", "bash", "-c", "echo > /dev/udp/10.9.0.2/9")
		c.read(t, 100*time.Millisecond)
		return c.packets[[2]netip.Addr{client, origin}] > 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// An address that nothing else has: what it sends and gets is of this test alone.
	run(ctx, t, "client", "ip", "address", "add", other.String()+"/24", "dev", "eth0")
	t.Cleanup(func() {
		run(context.Background(), t, "client", "ip", "address", "del", other.String()+"/24", "dev", "eth0")
	})
	crossed := countAt(ctx, t, other)
	sipp(ctx, t, other.String(), "keepalive", 50)
	if n := k.met("OPTIONS") + k.met("NOTIFY"); n < 100 {
		t.Errorf("%d of 100 keep-alives reached the server", n)
	}
	var there, back, wantThere, wantBack uint64
	same := 0 // reports in a row by which both agree
	for deadline := time.Now().Add(time.Minute); same < 3 && time.Now().Before(deadline); {
		c.read(t, reportEvery)
		there, back = c.packets[[2]netip.Addr{other, origin}], c.packets[[2]netip.Addr{origin, other}]
		wantThere, wantBack = crossed()
		if same++; there != wantThere || back != wantBack {
			same = 0
		}
	}
	if same < 3 || there < 100 || back < 100 {
		t.Errorf("%d packets reached the server's host and %d left; the collector was told of %d and %d", wantThere, wantBack, there, back)
	}
}

// engines is what the engines of a node say of themselves: of packets that reached the
// server, whether the module passed them on, or they never came to it.
func engines(ctx context.Context, node string) (said string) {
	sockets, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/var/lib/onpath/node/wasm/*/control", testbed.Pid(node)))
	for _, path := range sockets {
		s, err := control.Client{Path: path}.Status(ctx)
		said += fmt.Sprintf("\n%+v %v", s, err)
	}
	return said
}

// countAt counts at the origin's host, from now on, the packets from an address and to it.
func countAt(ctx context.Context, t *testing.T, a netip.Addr) func() (from, to uint64) {
	t.Helper()
	run(ctx, t, "origin", "nft", fmt.Sprintf(`table ip crossed {
		counter from {}
		counter to {}
		chain in { type filter hook input priority -300; ip saddr %[1]s counter name from; }
		chain out { type filter hook output priority -300; ip daddr %[1]s counter name to; }
	}`, a))
	t.Cleanup(func() { run(context.Background(), t, "origin", "nft", "delete table ip crossed") })
	read := func(name string) (n uint64) {
		t.Helper()
		out := run(ctx, t, "origin", "nft", "list counter ip crossed "+name)
		_, after, _ := strings.Cut(out, "packets ")
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatalf("read counter %s: %v in %q", name, err, out)
		}
		return n
	}
	return func() (uint64, uint64) { return read("from"), read("to") }
}

// reportEvery is how often netmonitor.c reports, and a little.
const (
	reportEvery = 600 * time.Millisecond
	reportSize  = 56 // sizeof(struct report)
)

// collector sums up what netmonitor reports.
type collector struct {
	conn    *net.UDPConn
	packets map[[2]netip.Addr]uint64 // by source and destination
}

func collect(t *testing.T) *collector {
	t.Helper()
	c := &collector{packets: map[[2]netip.Addr]uint64{}}
	in(t, "origin", func() (err error) {
		c.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2), Port: 9995})
		return err
	})
	t.Cleanup(func() { _ = c.conn.Close() })
	return c
}

// read takes what comes within a time.
func (c *collector) read(t *testing.T, within time.Duration) {
	t.Helper()
	b := make([]byte, 2048)
	_ = c.conn.SetReadDeadline(time.Now().Add(within))
	for {
		n, from, err := c.conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil || n%reportSize != 0 || from.Addr().String() == sipClient {
			t.Fatalf("the collector got %d bytes from %s: %v", n, from, err)
		}
		for r := range slices.Chunk(b[:n], reportSize) {
			key := [2]netip.Addr{netip.AddrFrom16([16]byte(r[:16])).Unmap(), netip.AddrFrom16([16]byte(r[16:32])).Unmap()}
			c.packets[key] += binary.LittleEndian.Uint64(r[reportSize-16:])
		}
	}
}
