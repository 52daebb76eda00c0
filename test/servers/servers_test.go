// Package servers runs two server processes on one external etcd: one leads, and
// when it is killed the other one takes over, with its objects and its nodes.
package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

const (
	cluster = "10.255.0.9:2379"
	moving  = "10.255.0.10" // the address at which nodes find the server that leads
	port    = ":7443"

	endsWithin = time.Minute // when told politely
)

// pair is the network and what runs in it.
type pair struct {
	t     *testing.T
	lab   *lab.Lab
	bin   string
	dir   string // of state and logs, shared by all hosts
	procs map[string]*exec.Cmd
	etcd  func() // ends it
}

func setUp(ctx context.Context, t *testing.T) *pair {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces and eBPF")
	}
	for _, p := range []string{"containerd", "runc", "ip"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("needs the program " + p)
		}
	}
	p := &pair{t: t, bin: testprogram.Path(t), dir: t.TempDir(), procs: map[string]*exec.Cmd{}, etcd: func() {}}
	topology, err := lab.ParseFile("testdata/lab.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("servers-%d", os.Getpid())
	for _, h := range topology.Hosts {
		if h.Private {
			h.Share = append(h.Share, p.dir, filepath.Dir(p.bin))
		}
	}
	if p.lab, err = lab.Up(ctx, topology, lab.Options{Bound: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.tearDown)
	p.serveEtcd()
	return p
}

func (p *pair) tearDown() {
	ctx := context.Background()
	if p.t.Failed() {
		for name := range p.procs {
			p.t.Logf("--- end of %s.log\n%s", name, p.log(name))
		}
	}
	p.end("n1", syscall.SIGTERM)
	if out, err := p.lab.Exec(ctx, "n1", p.bin, "node", "off", "--name", "n1"); err != nil {
		p.t.Errorf("node off: %v: %s", err, out)
	}
	for name := range p.procs {
		p.end(name, syscall.SIGTERM)
	}
	p.etcd()
	if err := p.lab.Down(ctx); err != nil {
		p.t.Error(err)
	}
}

// serveEtcd runs an etcd in this process and hands it on to the lab's host store.
func (p *pair) serveEtcd() {
	p.t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	client := url.URL{Scheme: "http", Host: free.Addr().String()}
	_ = free.Close()
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c := embed.NewConfig()
	c.Name, c.Dir = "cluster", filepath.Join(p.t.TempDir(), "etcd")
	c.ListenPeerUrls, c.AdvertisePeerUrls = nil, []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(c)
	if err != nil {
		p.t.Fatal(err)
	}
	p.etcd = e.Close
	<-e.Server.ReadyNotify()
	var l net.Listener
	err = netnsrun.Do(p.lab.NetNS("store"), func() (err error) {
		l, err = net.Listen("tcp", cluster)
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.etcd = func() { _ = l.Close(); e.Close() }
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go handOn(in, client.Host)
		}
	}()
}

func handOn(in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	go func() { _, _ = io.Copy(out, in); _ = out.(*net.TCPConn).CloseWrite() }()
	_, _ = io.Copy(in, out)
}

// start runs the program in a host; it writes to HOST.log.
func (p *pair) start(host string, args ...string) {
	p.t.Helper()
	f, err := os.Create(filepath.Join(p.dir, host+".log"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	cmd := p.lab.Command(host, p.bin, args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.procs[host] = cmd
}

func (p *pair) server(host string) {
	p.t.Helper()
	p.start(host, "server", "--etcd", "http://"+cluster, "--listen", moving+port, "--state-dir", filepath.Join(p.dir, host, "state"), "--socket", p.socket(host))
}

func (p *pair) socket(host string) string { return filepath.Join(p.dir, host, "server.sock") }

func (p *pair) end(host string, sig syscall.Signal) {
	cmd := p.procs[host]
	delete(p.procs, host)
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(sig)
	late := time.AfterFunc(endsWithin, func() {
		p.t.Errorf("%s has not ended %s after %v", host, endsWithin, sig)
		_ = cmd.Process.Kill()
	})
	_ = cmd.Wait()
	late.Stop()
}

func (p *pair) log(host string) string {
	b, _ := os.ReadFile(filepath.Join(p.dir, host+".log"))
	return string(b[max(0, len(b)-4000):])
}

// onpath runs the program against a host's server.
func (p *pair) onpath(ctx context.Context, host string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, p.bin, append([]string{"--server", "unix://" + p.socket(host)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), err
}

// within polls until ok and gives how long it took.
func (p *pair) within(limit time.Duration, what string, ok func() error) time.Duration {
	p.t.Helper()
	began := time.Now()
	for {
		err := ok()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			p.t.Fatalf("waited %s in vain until %s: %v", limit, what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// move gives a host the moving address, as a VRRP daemon would.
func (p *pair) move(ctx context.Context, from, to string) {
	p.t.Helper()
	do := func(host string, args ...string) {
		if out, err := p.lab.Exec(ctx, host, "ip", args...); err != nil {
			p.t.Fatalf("ip %s on %s: %v: %s", strings.Join(args, " "), host, err, out)
		}
	}
	if from != "" {
		do(from, "address", "del", moving+"/24", "dev", "eth0")
	}
	do(to, "address", "add", moving+"/24", "dev", "eth0")
	do("n1", "neigh", "flush", "dev", "eth0") // what its gratuitous ARP does
}

// ready says why the node is not connected to a host's server.
func (p *pair) ready(ctx context.Context, host string) error {
	out, err := p.onpath(ctx, host, "get", "nodes", "n1", "-o", "json")
	switch {
	case err != nil:
		return err
	case !strings.Contains(strings.Join(strings.Fields(out), ""), `"ready":true`):
		return errors.New("the node is not ready: " + out)
	}
	return nil
}

// TestLeaderKilled: of two servers one leads; when it is killed the other takes
// over, with the same objects, the node's session comes back, and what is written
// then is in force. The first one, started again, waits.
func TestLeaderKilled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p := setUp(ctx, t)
	p.move(ctx, "", "s1")
	p.server("s1")
	p.within(time.Minute, "the first server answers", func() error { _, err := p.onpath(ctx, "s1", "get", "nodes"); return err })
	p.server("s2")
	p.waits("s2")
	token, err := p.onpath(ctx, "s1", "token", "create", "--node", "n1", "--cloudlet", "pop")
	if err != nil {
		t.Fatal(err)
	}
	p.start("n1", "node", "--name", "n1", "--cloudlet", "pop", "--underlay", "10.255.0.11", "--server", "https://"+moving+port, "--token", token)
	p.within(time.Minute, "the node is ready", func() error { return p.ready(ctx, "s1") })
	p.apply(ctx, "s1", "before")
	p.apply(ctx, "s1", "unconfirmed", "--confirm", "10s")
	// A server reads them when it begins to lead. The copy must know all nodes.
	copyState(t, filepath.Join(p.dir, "s1", "state"), filepath.Join(p.dir, "s2", "state"))
	if _, err := p.onpath(ctx, "s2", "get", "nodes"); err == nil {
		t.Error("a server that waits answers")
	}

	p.end("s1", syscall.SIGKILL)
	p.move(ctx, "s1", "s2")
	took := p.within(time.Minute, "the second server answers", func() error {
		out, err := p.onpath(ctx, "s2", "get", "hosts", "before")
		if err == nil && !strings.Contains(out, "before") {
			err = errors.New(out)
		}
		return err
	})
	back := p.within(time.Minute, "the node is back", func() error {
		if n := strings.Count(p.log("n1"), "connected to the server"); n < 2 {
			return fmt.Errorf("it has connected %d times", n)
		}
		return p.ready(ctx, "s2")
	})
	t.Logf("the second server answered %s after the first was killed, the node was there %s later", took.Round(100*time.Millisecond), back.Round(100*time.Millisecond))
	p.apply(ctx, "s2", "after")
	p.server("s1")
	p.waits("s1")

	// What was applied to s1 and not confirmed, s2 undoes.
	p.within(time.Minute, "what was not confirmed is undone", func() error {
		if out, err := p.onpath(ctx, "s2", "get", "hosts"); err != nil || strings.Contains(out, "unconfirmed") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	p.move(ctx, "s2", "s1") // before s1 leads, which it does at once
	p.end("s2", syscall.SIGTERM)
	p.within(time.Minute, "the first server answers again", func() error { _, err := p.onpath(ctx, "s1", "get", "hosts", "after"); return err })
	p.server("s2")
	p.waits("s2")
	p.etcd() // one that waits ends when it is told to, also without the cluster
	p.etcd = func() {}
	p.end("s2", syscall.SIGTERM)
	p.end("s1", syscall.SIGKILL) // it would wait for its lease to end
}

// waits until a server says that it waits.
func (p *pair) waits(host string) {
	p.t.Helper()
	p.within(time.Minute, "server "+host+" waits", func() error {
		if !strings.Contains(p.log(host), "another server leads") {
			return errors.New(p.log(host))
		}
		return nil
	})
}

// apply writes an object to a host's server.
func (p *pair) apply(ctx context.Context, host, name string, flags ...string) {
	p.t.Helper()
	file := filepath.Join(p.dir, name+".yaml")
	text := "apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: " + name + "}\nspec: {addresses: [10.9.0.2]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if out, err := p.onpath(ctx, host, append([]string{"apply", "-f", file}, flags...)...); err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
}

// copyState gives the waiting server what it needs of the leader's files.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(to, "auth"), os.DirFS(filepath.Join(from, "auth"))); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(from, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "secret"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}
