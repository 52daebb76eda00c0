// Package functions tests the first-party functions: each real image, run by
// the container runtime in a wired namespace, with real packets.
package functions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/runtime/container"
)

var (
	once   sync.Once
	driver *container.Driver
	lacks  string
	state  string
)

func TestMain(m *testing.M) {
	code := m.Run()
	if driver != nil {
		if err := driver.Remove(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "clean up:", err)
			code = 1
		}
		os.RemoveAll(state)
	}
	os.Exit(code)
}

// theRuntime is one driver for all tests: images are imported once.
func theRuntime(t *testing.T) *container.Driver {
	t.Helper()
	once.Do(func() {
		if os.Getuid() != 0 {
			lacks = "functions are tested as root"
			return
		}
		for _, p := range container.Probe(t.Context()) {
			if p.Required && !p.Found {
				lacks = p.Name + " is lacking: " + p.Detail
				return
			}
		}
		for _, bin := range []string{"ip", "nft", "mmdebstrap"} {
			if _, err := exec.LookPath(bin); err != nil {
				lacks = bin + " is not installed"
				return
			}
		}
		state, _ = os.MkdirTemp("/tmp", fmt.Sprintf("ot-functions-%d-", os.Getpid()))
		d, err := container.New(context.Background(), container.Options{StateDir: state, Name: "functions", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			lacks = err.Error()
			return
		}
		driver = d
	})
	if driver == nil {
		t.Skip(lacks)
	}
	return driver
}

// instance is a running function in its network.
type instance struct {
	*network
	rt *container.Driver
	p  onpath.Process
}

// start builds the function's image, reads its function.yaml and runs it.
func start(t *testing.T, name string, bridged bool, env onpath.Env, files map[string]onpath.File) *instance {
	t.Helper()
	rt := theRuntime(t)
	img, err := ociimage.Build(t.Context(), filepath.Join("../../functions", name), "", func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	spec := readSpec(t, name)
	spec.Container.Image = img.Layout
	for k, v := range env {
		if spec.Container.Env == nil {
			spec.Container.Env = onpath.Env{}
		}
		spec.Container.Env[k] = v
	}
	spec.Container.Files = files
	n := newNetwork(t, bridged)
	if err := rt.Prepare(t.Context(), &spec, func(s string) { t.Log(s) }); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p, err := rt.Start(t.Context(), onpath.RunSpec{ID: fmt.Sprintf("%s-%d", name, time.Now().UnixNano()%1e9), Spec: spec, NetNS: "/run/netns/" + n.fn})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: started in %v", name, time.Since(begin).Round(time.Millisecond))
	i := &instance{network: n, rt: rt, p: p}
	t.Cleanup(func() {
		if t.Failed() {
			var b bytes.Buffer
			_ = rt.Logs(context.Background(), p.ID(), onpath.LogView{Tail: -1}, false, &b)
			t.Logf("log of %s:\n%s", name, b.String())
		}
		if err := p.Stop(context.Background(), 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	i.ready(spec.Health)
	t.Logf("%s: ready after %v", name, time.Since(begin).Round(time.Millisecond))
	return i
}

func readSpec(t *testing.T, name string) onpath.FunctionSpec {
	t.Helper()
	path := filepath.Join("../../functions", name, "function.yaml")
	docs, err := manifest.Load([]string{path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range manifest.Objects(docs) {
		if f, ok := o.(*onpath.Function); ok {
			return f.Spec
		}
	}
	t.Fatalf("%s has no Function", path)
	return onpath.FunctionSpec{}
}

// ready waits as the node would: until the function's own probe succeeds.
func (i *instance) ready(h onpath.Health) {
	i.t.Helper()
	eventually(i.t, 60*time.Second, "the probe succeeds", func() bool {
		select {
		case <-i.p.Exited():
			code, _ := i.p.Exit()
			i.t.Fatalf("it ended with code %d", code)
		default:
		}
		if h.TCP != 0 {
			c, err := in(i.t, i.fn, func() (net.Conn, error) {
				return net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", h.TCP), time.Second)
			})
			if err == nil {
				c.Close()
			}
			return err == nil
		}
		code, err := i.rt.Exec(i.t.Context(), i.p.ID(), onpath.ExecSpec{Command: h.Exec})
		return err == nil && code == 0
	})
}

func (i *instance) sh(script string) string {
	i.t.Helper()
	var out bytes.Buffer
	code, err := i.rt.Exec(i.t.Context(), i.p.ID(), onpath.ExecSpec{Command: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		i.t.Fatalf("%s: code %d, %v\n%s", script, code, err, out.String())
	}
	return out.String()
}

func hello(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	fmt.Fprint(w, "hello "+host)
}

func TestFirewall(t *testing.T) {
	i := start(t, "firewall", false, onpath.Env{"BLOCK_PORTS": "8081", "BLOCK_HOSTS": "10.9.0.3,fd09::3"}, nil)
	i.serve(8080, http.HandlerFunc(hello))
	i.serve(8081, http.HandlerFunc(hello))
	run(t, "ip -n %s addr add 10.9.0.3/24 dev s0", i.server)
	for _, host := range []string{serverIP, serverIP6} {
		if body, _, err := i.get(url(host, 8080, "/"), time.Minute); err != nil || !strings.HasPrefix(body, "hello ") {
			t.Errorf("%s: %q, %v", host, body, err)
		}
		if _, _, err := i.get(url(host, 8081, "/"), 700*time.Millisecond); err == nil {
			t.Errorf("the blocked port of %s answers", host)
		}
	}
	if _, _, err := i.get(url("10.9.0.3", 8080, "/"), 700*time.Millisecond); err == nil {
		t.Error("the blocked host answers")
	}
	counters := i.sh("nft list counters")
	if !contains(counters, "blocked-ports", "blocked-hosts") || strings.Count(counters, "packets 0 ") != 0 {
		t.Errorf("counters: %s", counters)
	}
	i.sh("sed -i 's/8081/9999/' /etc/onpath/firewall.nft && kill -HUP 1")
	eventually(t, time.Minute, "the port opens after the rules were loaded anew", func() bool {
		_, _, err := i.get(url(serverIP, 8081, "/"), 700*time.Millisecond)
		return err == nil
	})
	before := i.sh("nft list ruleset")
	i.sh("echo 'table inet {' >> /etc/onpath/firewall.nft && kill -HUP 1")
	eventually(t, time.Minute, "the log says that faulty rules are not loaded", func() bool {
		var log bytes.Buffer
		if err := i.rt.Logs(t.Context(), i.p.ID(), onpath.LogView{Tail: -1}, false, &log); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(log.String(), "the old rules stay") && strings.Count(log.String(), "are loaded") == 2
	})
	if after := i.sh("nft list ruleset"); !contains(after, "9999") || strings.Count(after, "\n") != strings.Count(before, "\n") {
		t.Errorf("the rules after faulty ones: %s", after)
	}
}

func TestShaper(t *testing.T) {
	const rate = 20e6 // bits/s
	payload := strings.Repeat("x", 3_000_000)
	body := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, payload) })
	for _, bridged := range []bool{false, true} {
		t.Run(map[bool]string{false: "routed", true: "bridged"}[bridged], func(t *testing.T) {
			i := start(t, "shaper", bridged, onpath.Env{"RATE": "100mbit", "DOWN": "20mbit", "CLIENTS": clientIP + "," + clientIP6}, nil)
			i.serve(80, body)
			for until, speed := time.Now().Add(time.Minute), 0.0; speed < 0.5*rate; { // a busy machine is slow now and then
				begin := time.Now()
				got, _, err := i.get(url(serverIP, 80, "/"), time.Minute)
				if err != nil || len(got) != len(payload) {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
				speed = float64(len(payload)) * 8 / time.Since(begin).Seconds()
				t.Logf("%.1f Mbit/s", speed/1e6)
				if speed > 1.15*rate || speed < 0.5*rate && time.Now().After(until) {
					t.Fatalf("%.1f Mbit/s through a limit of 20", speed/1e6)
				}
			}
		})
	}
}

func TestNAT(t *testing.T) {
	i := start(t, "nat", false, onpath.Env{"MAP": "203.0.113.10=" + serverIP + ",2001:db8::10=" + serverIP6}, nil)
	i.serve(80, http.HandlerFunc(hello))
	for virtual, client := range map[string]string{"203.0.113.10": clientIP, "2001:db8::10": clientIP6} {
		if body, _, err := i.get(url(virtual, 80, "/"), time.Minute); err != nil || body != "hello "+client {
			t.Errorf("%s: %q, %v", virtual, body, err)
		}
	}
}

func TestBridge(t *testing.T) {
	i := start(t, "bridge", true, nil, nil)
	i.serve(80, http.HandlerFunc(hello))
	for server, client := range map[string]string{serverIP: clientIP, serverIP6: clientIP6} {
		if body, _, err := i.get(url(server, 80, "/"), time.Minute); err != nil || body != "hello "+client {
			t.Errorf("%s: %q, %v", server, body, err)
		}
	}
	if out := i.sh("ip -s link show br0"); !strings.Contains(out, "UP") {
		t.Error(out)
	}
}

func TestCache(t *testing.T) {
	i := start(t, "cache", false, nil, nil)
	var mu sync.Mutex
	asked := map[string]int{}
	i.serve(80, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		mu.Unlock()
		w.Header().Set("Cache-Control", "max-age=600")
		hello(w, r)
	}))
	i.serve(8080, http.HandlerFunc(hello))
	for n, host := range []string{serverIP, serverIP6} {
		path := "/page" + strconv.Itoa(n)
		client := []string{clientIP, clientIP6}[n]
		for _, want := range []string{"MISS", "HIT"} {
			body, h, err := i.get(url(host, 80, path), time.Minute)
			if err != nil || body != "hello "+client {
				t.Fatalf("%s: %q, %v", host, body, err)
			}
			if x := h.Get("X-Cache"); !strings.HasPrefix(x, want) {
				t.Errorf("%s: X-Cache %q, want %s", host, x, want)
			}
		}
		mu.Lock()
		if asked[path] != 1 {
			t.Errorf("%s: the origin was asked %d times", host, asked[path])
		}
		mu.Unlock()
	}
	for _, client := range []string{clientIP, clientIP6} {
		i.portsAgain(client)
	}
	if body, h, err := i.get(url(serverIP, 8080, "/"), time.Minute); err != nil || body != "hello "+clientIP || h.Get("X-Cache") != "" {
		t.Errorf("a port that is not cached: %q, %v, %v", body, h, err)
	}
	// Squid takes a request with its own name and port for one about itself.
	_, h, err := i.get(url(serverIP, 80, "/page0"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(h.Get("X-Cache"), " from ")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url(serverIP, 80, "/squid-internal-mgr/client_list"), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = name + ":3128"
	told, err := i.httpClient(time.Minute).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(told.Body)
	told.Body.Close()
	if told.StatusCode < 400 || contains(string(body), "Cache Clients") {
		t.Errorf("any client is told of the others: %s %.300s", told.Status, body)
	}
	eventually(t, time.Minute, "the log tells of MISS and HIT", func() bool {
		var b bytes.Buffer
		err := i.rt.Logs(t.Context(), i.p.ID(), onpath.LogView{Tail: -1}, false, &b)
		return err == nil && contains(b.String(), "TCP_MISS/200", "TCP_MEM_HIT/200", clientIP)
	})
}

// portsAgain opens a connection with the ports of one that the cache has just closed. The
// first SYN begins it; none has to be sent again.
func (i *instance) portsAgain(client string) {
	i.t.Helper()
	server := map[string]string{clientIP: serverIP, clientIP6: serverIP6}[client]
	const port = 23456 // none of those that the kernel chooses
	for n := range 3 {
		again, err := in(i.t, i.client, func() (again uint32, err error) {
			d := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.ParseIP(client), Port: port}}
			d.Control = func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			}
			conn, err := d.Dial("tcp", net.JoinHostPort(server, "80"))
			for until := time.Now().Add(time.Minute); errors.Is(err, syscall.EADDRNOTAVAIL) && time.Now().Before(until); {
				time.Sleep(time.Millisecond) // this end waits for the last ACK yet
				conn, err = d.Dial("tcp", net.JoinHostPort(server, "80"))
			}
			if err != nil {
				return 0, err
			}
			defer conn.Close()
			raw, err := conn.(*net.TCPConn).SyscallConn()
			if err != nil {
				return 0, err
			}
			var info *unix.TCPInfo
			_ = raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
			if err != nil {
				return 0, err
			}
			fmt.Fprintf(conn, "GET /page0 HTTP/1.0\r\nHost: %s\r\n\r\n", net.JoinHostPort(server, "80"))
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, err = io.Copy(io.Discard, conn) // until the cache closes
			return info.Total_retrans, err
		})
		if err != nil || again > 0 {
			i.t.Errorf("%s, connection %d with the same ports: %d packets were sent again; %v", client, n+1, again, err)
		}
	}
}

func TestIDS(t *testing.T) {
	rule := onpath.File{Content: `alert http any any -> any any (msg:"secret page"; http.uri; content:"/secret"; sid:7; rev:1;)` + "\n"}
	i := start(t, "ids", false, nil, map[string]onpath.File{"/etc/onpath/ids.rules": rule})
	i.mirror()
	i.serve(80, http.HandlerFunc(hello))
	eventually(t, time.Minute, "an alert", func() bool {
		for _, path := range []string{"/secret", "/harmless"} {
			if body, _, err := i.get(url(serverIP, 80, path), time.Minute); err != nil || body != "hello "+clientIP {
				t.Fatalf("traffic itself: %q, %v", body, err)
			}
		}
		return contains(i.sh("cat /var/log/suricata/fast.log"), "secret page", clientIP)
	})
	eve := i.sh("cat /var/log/suricata/eve.json")
	if !contains(eve, `"signature_id":7`, "/secret") || strings.Contains(eve, "/harmless") {
		t.Errorf("eve.json: %s", eve)
	}
	eventually(t, time.Minute, "the alert in the instance's log", func() bool {
		var b bytes.Buffer
		err := i.rt.Logs(t.Context(), i.p.ID(), onpath.LogView{Tail: -1}, false, &b)
		return err == nil && contains(b.String(), "secret page")
	})
}

func TestIPS(t *testing.T) {
	rule := onpath.File{Content: `drop http any any -> any any (msg:"forbidden page"; http.uri; content:"/forbidden"; sid:8; rev:1;)` + "\n"}
	i := start(t, "ids", false, onpath.Env{"MODE": "inline"}, map[string]onpath.File{"/etc/onpath/ids.rules": rule})
	i.serve(80, http.HandlerFunc(hello))
	eventually(t, time.Minute, "traffic passes", func() bool {
		body, _, err := i.get(url(serverIP, 80, "/"), 20*time.Second)
		return err == nil && body == "hello "+clientIP
	})
	if body, _, err := i.get(url(serverIP, 80, "/forbidden"), 2*time.Second); err == nil {
		t.Errorf("the forbidden page came: %q", body)
	}
	eventually(t, time.Minute, "the drop in fast.log", func() bool { return contains(i.sh("cat /var/log/suricata/fast.log"), "[Drop]", "forbidden page") })
}
