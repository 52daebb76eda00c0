package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/catalogue"
	"github.com/onpath/onpath/cli/ociimage"
)

// places are what the pages of the catalogue name, as they are called in the testbed.
var places = strings.NewReplacer("sudo onpath", "onpath", "fra1", "pop",
	"198.51.100.10", "10.9.0.2", "2001:db8::100", "fd09::100", "2001:db8::10", "fd09::2", "203.0.113.10", "10.9.0.100")

const website = `apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: website, tenant: %s}
spec:
  addresses: [10.9.0.2, "fd09::2"]
  virtual: [10.9.0.100, "fd09::100"]
`

// entryTest is how an entry's effect is counted on real traffic.
type entryTest struct {
	name string
	// prepare is what the page takes for granted.
	prepare func(*entryRun)
	effect  func(*entryRun)
	inline  bool // it has no process that could be killed
}

// TestCatalogueQuick: an entry whose image needs nothing, from its three lines.
func TestCatalogueQuick(t *testing.T) {
	i := slices.IndexFunc(entryTests, func(e entryTest) bool { return e.name == "ebpf-firewall" })
	useEntry(t, entryTests[i], 20*time.Second)
}

// TestCatalogue: each entry, from the three lines of its page: its effect on traffic of both IP
// versions is counted, and again after its instance was killed. The modules, the monitor and
// pairs have tests of their own.
func TestCatalogue(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; this takes minutes and builds images")
	}
	for _, e := range entryTests {
		t.Run(e.name, func(t *testing.T) { useEntry(t, e, 15*time.Minute) })
	}
}

var entryTests = []entryTest{
	{"bridge", nil, (*entryRun).passes, false},
	{"cache", nil, (*entryRun).cached, false},
	{"firewall", nil, (*entryRun).blocks, false},
	{"ids", nil, func(r *entryRun) { r.alerts(true) }, false},
	{"ips", nil, func(r *entryRun) { r.alerts(false) }, false},
	{"nat", nil, (*entryRun).translated, false},
	{"shaper", nil, (*entryRun).limited, false},
	{"ebpf-firewall", nil, (*entryRun).blocks, true},
	{"ebpf-loadbalancer", nil, (*entryRun).translated, true},
	{"ebpf-ratelimit", nil, (*entryRun).limited, true},
	{"dns", nil, (*entryRun).resolves, false},
	{"haproxy", nil, (*entryRun).balances, false},
	{"vpn", (*entryRun).makeKeys, (*entryRun).tunnels, false},
}

// entryRun is an entry at work.
type entryRun struct {
	*testing.T
	ctx     context.Context
	dir     string // where its lines run
	entry   *catalogue.Entry
	mu      sync.Mutex
	asked   map[string]int       // of the origin, by path
	turn    int                  // how often the effect was counted before
	servers map[int]*http.Server // of the origin, by port
}

func useEntry(t *testing.T, e entryTest, limit time.Duration) {
	ctx := need(t, limit)
	entry, err := catalogue.Find(e.name)
	if err != nil {
		t.Fatal(err)
	}
	f := entry.Function.Metadata
	r := &entryRun{T: t, ctx: ctx, dir: t.TempDir(), entry: entry, asked: map[string]int{}, servers: map[int]*http.Server{}}
	if err := os.Symlink(testbed.Bin(), filepath.Join(r.dir, "onpath")); err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, fmt.Sprintf(website, f.Tenant))
	for _, port := range []int{80, 8001, 8002, 8080, 8081} {
		r.serve(port)
	}
	if e.prepare != nil {
		e.prepare(r)
	}
	before, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeEntry(t, entry, len(before)) })
	for _, line := range entry.Use {
		cmd := exec.CommandContext(ctx, "sh", "-c", places.Replace(line))
		cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"), "ONPATH_SERVER="+testbed.Socket())
		began := time.Now()
		out, err := cmd.CombinedOutput()
		t.Logf("$ %s   (%s)\n%s", line, time.Since(began).Round(100*time.Millisecond), tail(string(out), 8))
		if err != nil {
			t.Fatal(err)
		}
	}
	e.effect(r)
	if e.inline || t.Failed() {
		return
	}
	r.turn++
	r.kill()
	e.effect(r)
}

// removeEntry deletes what `catalogue use` has made.
func removeEntry(t *testing.T, e *catalogue.Entry, instances int) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	kinds := []string{"chain", "function"}
	if e.Service != nil {
		kinds = []string{"service", "deployment", "function"}
	}
	var holder onpath.Object = &onpath.Chain{}
	if e.Service != nil {
		holder = &onpath.Deployment{}
	}
	if err := testbed.Get(ctx, holder, strings.ToLower(string(holder.ObjectKind())), e.Function.Metadata.Name, "--tenant",
		e.Function.Metadata.Tenant); err != nil {
		t.Errorf("clean up: %v", err)
	}
	switch o := holder.(type) { // nobody waits for flows that end by themselves
	case *onpath.Chain:
		o.Spec.Through[0].Drain = onpath.Duration(time.Second)
	case *onpath.Deployment:
		o.Spec.Drain = onpath.Duration(time.Second)
	}
	file := filepath.Join(t.TempDir(), "drain.yaml")
	var text bytes.Buffer
	if err := manifest.Encode(&text, holder); err != nil {
		t.Errorf("clean up: %v", err)
	}
	if err := errors.Join(os.WriteFile(file, text.Bytes(), 0o600), testbed.Apply(ctx, file)); err != nil {
		t.Errorf("clean up: %v", err)
	}
	for _, kind := range kinds {
		if _, err := testbed.Onpath(ctx, "delete", kind, e.Function.Metadata.Name, "--tenant", e.Function.Metadata.Tenant); err != nil {
			t.Errorf("clean up: %v", err)
		}
	}
	if err := testbed.WaitFor(ctx, "its instances are gone", 80*time.Second, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		return len(list) <= instances, err
	}); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

// kill kills the instance, and waits until the next run of it is ready.
func (r *entryRun) kill() {
	r.Helper()
	deployment := r.entry.Function.Metadata.Name
	if r.entry.Chain != nil {
		deployment += "-" + deployment
	}
	name, err := testbed.InstanceOf(r.ctx, deployment)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := testbed.Onpath(r.ctx, "fault", "kill-instance", name, "--yes", "--watch", "0"); err != nil {
		r.Fatal(err)
	}
	err = testbed.WaitFor(r.ctx, "it is ready again", 2*time.Minute, func() (bool, error) {
		list, err := testbed.Instances(r.ctx)
		return slices.ContainsFunc(list, func(i onpath.Instance) bool {
			return i.Spec.Deployment == deployment && i.Status.Restarts > 0 && i.Status.State == onpath.InstanceReady
		}), err
	})
	if err != nil {
		r.Fatal(err)
	}
}

// serve answers HTTP at a port of the origin, with the caller's address and the port.
func (r *entryRun) serve(port int) {
	var l net.Listener
	in(r.T, "origin", func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		return err
	})
	big := bytes.Repeat([]byte("x"), 5<<20)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		r.asked[q.URL.Path]++
		r.mu.Unlock()
		if w.Header().Set("Cache-Control", "max-age=600"); q.URL.Path == "/big" {
			_, _ = w.Write(big)
			return
		}
		host, _, _ := net.SplitHostPort(q.RemoteAddr)
		fmt.Fprintf(w, "%s at %d", host, port)
	})}
	r.servers[port] = s
	go func() { _ = s.Serve(l) }()
	r.Cleanup(func() { _ = s.Close() })
}

// get asks for a page from the client's host.
func (r *entryRun) get(address string, port int, path string, limit string) (string, error) {
	u := fmt.Sprintf("http://%s%s", net.JoinHostPort(address, fmt.Sprint(port)), path)
	out, err := testbed.Exec(r.ctx, "client", "curl", "-sg", "-m", limit, "-o", "-", u)
	return string(out), err
}

// must asks until it gets want: what has just begun may have to learn its neighbours.
func (r *entryRun) must(address string, port int, path, want string) {
	r.Helper()
	last := ""
	err := testbed.WaitFor(r.ctx, fmt.Sprintf("%s port %d answers", address, port), time.Minute, func() (bool, error) {
		body, err := r.get(address, port, path, "3")
		last = fmt.Sprintf("%.80q, %v", body, err)
		return err == nil && strings.Contains(body, want), nil
	})
	if err != nil {
		r.Fatalf("%v: %s", err, last)
	}
}

var origins = []string{"10.9.0.2", "fd09::2"}

// passes: servers are reached, and see the client's own address.
func (r *entryRun) passes() {
	r.Helper()
	for _, a := range origins {
		r.must(a, 8080, "/", clientAddress(a).String()+" at 8080")
	}
}

func (r *entryRun) blocks() {
	r.passes()
	for _, a := range origins {
		if body, err := r.get(a, 8081, "/", "1"); err == nil {
			r.Errorf("the blocked port of %s answers %q", a, body)
		}
	}
}

func (r *entryRun) cached() {
	for i, a := range origins {
		path := fmt.Sprintf("/page-%d-%d", r.turn, i)
		for range 4 {
			r.must(a, 80, path, clientAddress(a).String())
		}
		r.mu.Lock()
		if n := r.asked[path]; n != 1 {
			r.Errorf("%s: the origin was asked %d times for a page that was asked for 4 times", a, n)
		}
		r.mu.Unlock()
	}
}

func (r *entryRun) translated() {
	for _, a := range []string{"10.9.0.100", "fd09::100"} {
		r.must(a, 80, "/", clientAddress(a).String()+" at 80")
	}
}

// limited: 5 MiB at 50 Mbit/s take 0.84 s, less what a burst lets through.
func (r *entryRun) limited() {
	for _, a := range origins {
		began := time.Now()
		body, err := r.get(a, 8080, "/big", "30")
		took := time.Since(began)
		if err != nil || len(body) != 5<<20 || took < 550*time.Millisecond {
			r.Errorf("%s: %d bytes in %s, %v", a, len(body), took, err)
		}
		r.Logf("%s: %.1f Mbit/s", a, float64(len(body))*8/1e6/took.Seconds())
	}
}

// alerts: requests that a rule names are told of; they get their answer, or none.
func (r *entryRun) alerts(answered bool) {
	for _, a := range origins {
		before := r.told(a)
		r.must(a, 80, "/", "at 80")
		if _, err := r.get(a, 80, "/admin", "2"); (err == nil) != answered {
			r.Errorf("%s: a request for /admin: %v", a, err)
		}
		err := testbed.WaitFor(r.ctx, "the owner is told", time.Minute, func() (bool, error) { return r.told(a) > before, nil })
		if err != nil {
			r.Error(err)
		}
	}
}

// told counts the alerts about requests of the client to an address of the origin.
func (r *entryRun) told(to string) (n int) {
	out, err := testbed.Onpath(r.ctx, "notifications", "-o", "json", "--limit", "1000")
	if err != nil {
		r.Fatal(err)
	}
	var list []onpath.Notification
	if err := json.Unmarshal(out, &list); err != nil {
		r.Fatal(err)
	}
	for _, x := range list {
		from, _ := netip.ParseAddr(x.Fields["src_ip"])
		if strings.Contains(x.Title, "administrator page") && from == clientAddress(to) {
			n++
		}
	}
	return n
}

// addresses are those at which the service answers.
func (r *entryRun) addresses() []netip.Addr {
	r.Helper()
	var s onpath.Service
	err := testbed.WaitFor(r.ctx, "the service answers", time.Minute, func() (bool, error) {
		err := testbed.Get(r.ctx, &s, "service", r.entry.Function.Metadata.Name)
		return err == nil && len(s.Status.Cloudlets) == 1 && s.Status.Cloudlets[0].Serves, err
	})
	if err != nil {
		r.Fatal(err)
	}
	return s.Status.Cloudlets[0].Addresses
}

func (r *entryRun) resolves() {
	for _, a := range r.addresses() {
		for kind, want := range map[string]string{"A": "10.9.0.2", "AAAA": "fd09::2"} {
			for _, way := range []string{"+notcp", "+tcp"} {
				out := run(r.ctx, r.T, "client", "dig", "+short", "+tries=3", "+time=2", way, "@"+a.String(), "www.example.net", kind)
				if strings.TrimSpace(out) != want {
					r.Errorf("@%s %s %s: %q", a, way, kind, out)
				}
			}
		}
	}
}

// balances: requests are spread evenly, and one server's death is noticed after three checks.
func (r *entryRun) balances() {
	spread := func(a netip.Addr, n int) map[string]int {
		got := map[string]int{}
		for range n {
			body, err := r.get(a.String(), 80, "/", "3")
			if err != nil {
				r.Error(err)
			}
			_, port, _ := strings.Cut(body, " at ")
			got[port]++
		}
		return got
	}
	list := r.addresses()
	for _, a := range list {
		for _, port := range []string{"8001", "8002"} { // what its first check found away is back after two good ones
			r.must(a.String(), 80, "/", "at "+port)
		}
		if got := spread(a, 40); got["8001"] < 18 || got["8002"] < 18 {
			r.Errorf("%s: %v; %s", a, got, r.log())
		}
	}
	_ = r.servers[8002].Close()
	time.Sleep(5 * time.Second) // three checks, a second apart, and what a connection may take
	if got := spread(list[0], 10); got["8001"] != 10 {
		r.Errorf("after a server's death: %v; %s", got, r.log())
	}
	r.serve(8002)
	time.Sleep(4 * time.Second) // two good checks
}

// log is what the instance says.
func (r *entryRun) log() string {
	name, err := testbed.InstanceOf(r.ctx, r.entry.Function.Metadata.Name)
	if err != nil {
		return err.Error()
	}
	out, _ := testbed.Onpath(r.ctx, "logs", name)
	return string(out)
}

// makeKeys makes the client's keys, with the programs of the entry's own image.
func (r *entryRun) makeKeys() {
	dir := filepath.Join(r.dir, "functions")
	if err := catalogue.Extract(dir); err != nil {
		r.Fatal(err)
	}
	image, err := ociimage.Build(r.ctx, filepath.Join(dir, "vpn"), "", func(s string) { r.Log(s) })
	if err != nil {
		r.Fatal(err)
	}
	takeOut(r.T, image.Layout, r.dir, "usr/bin/wg", "usr/bin/wireguard-go")
	r.sh("wg genkey > client.key && wg pubkey < client.key > client.pub")
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := testbed.Onpath(ctx, "delete", "secret", "vpn"); err != nil {
			r.Errorf("clean up: %v", err)
		}
	})
}

func (r *entryRun) sh(script string) string {
	r.Helper()
	cmd := exec.CommandContext(r.ctx, "sh", "-c", script)
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// takeOut writes programs of an image into a folder.
func takeOut(t *testing.T, layout, to string, names ...string) {
	blobs, err := filepath.Glob(filepath.Join(layout, "blobs", "sha256", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		f, err := os.Open(b)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			continue // no layer
		}
		for r := tar.NewReader(z); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			if name := strings.TrimPrefix(h.Name, "./"); slices.Contains(names, name) {
				content, err := io.ReadAll(r)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(to, filepath.Base(name)), content, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// tunnels: through the VPN servers of both IP versions are reached; they see the instance's
// address, not the client's.
func (r *entryRun) tunnels() {
	device := fmt.Sprintf("wg%d", os.Getpid()%100000)
	at := r.addresses()[0]
	if r.turn == 0 {
		if err := testbed.Start("wireguard-client", "client", filepath.Join(r.dir, "wireguard-go"), "-f", device); err != nil {
			r.Fatal(err)
		}
		if err := testbed.WaitFor(r.ctx, "the client's device", time.Minute, func() (bool, error) {
			_, err := os.Stat("/var/run/wireguard/" + device + ".sock")
			return err == nil, nil
		}); err != nil {
			r.Fatal(err)
		}
		name, err := testbed.InstanceOf(r.ctx, "vpn")
		if err != nil {
			r.Fatal(err)
		}
		log, err := testbed.Onpath(r.ctx, "logs", name)
		if err != nil {
			r.Fatal(err)
		}
		_, public, _ := strings.Cut(strings.TrimSpace(lineWith(string(log), "public key is")), "public key is ")
		r.sh(fmt.Sprintf("wg set %s private-key client.key peer '%s' endpoint %s:51820 "+
			"allowed-ips 10.9.0.2/32,fd09::2/128 persistent-keepalive 5", device, public, at))
		for _, line := range []string{"ip addr add 10.77.0.2/32 dev " + device, "ip addr add fd77::2/128 dev " + device + " nodad",
			"ip link set " + device + " mtu 1380 up", "ip route add 10.9.0.2/32 dev " + device, "ip route add fd09::2/128 dev " + device} {
			run(r.ctx, r.T, "client", strings.Fields(line)...)
		}
		r.Cleanup(func() { _, _ = testbed.Exec(context.Background(), "client", "ip", "link", "del", device) })
	}
	for _, a := range origins {
		err := testbed.WaitFor(r.ctx, a+" answers through the VPN", time.Minute, func() (bool, error) {
			body, err := r.get(a, 8080, "/", "3")
			if err == nil && strings.Contains(body, clientAddress(a).String()+" ") {
				return false, fmt.Errorf("the server sees the client: %s", body)
			}
			return err == nil && strings.Contains(body, "at 8080"), nil
		})
		if err != nil {
			r.Fatal(err)
		}
	}
	if t := strings.Fields(r.sh("wg show " + device + " transfer")); len(t) != 3 || t[1] == "0" {
		r.Errorf("the VPN carried %v", t)
	}
}
