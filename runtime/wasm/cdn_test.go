package wasm

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/functions"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
)

// TestCDN: active-cdn in its isolation serves a crowd at an instance's port from a real origin,
// which is asked for each file once; what it stored outlives a crash of the engine, and goes
// with the instance. What the function does not name, and this machine, is not connected to.
func TestCDN(t *testing.T) {
	opt := options(t)
	opt.Program = testprogram.Path(t)
	file := make([]byte, 4<<20)
	_, _ = rand.Read(file)
	var asked atomic.Int64
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		_, _ = w.Write(file)
	}))
	defer origin.Close()
	opt.Dial = new(net.Dialer).DialContext
	d, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	node, instance := namespaces(t)
	if err := netnsrun.Do(node, func() error { return bringUpNeighbour("v0", "10.9.0.2") }); err != nil {
		t.Fatal(err)
	}
	spec := onpath.FunctionSpec{
		Wasm: &onpath.WasmSpec{Ports: []onpath.ServedPort{{Protocol: "tcp", Port: 80}}, Disk: 32 << 20, Modules: []onpath.WasmModule{{
			Name: "cdn", Code: functions.ActiveCDNModule, Config: onpath.Env{"origin": origin.URL}, Fetch: []string{"$origin"},
		}}},
		Resources: onpath.Resources{CPU: 1000, Memory: 64 << 20}, Packets: onpath.PacketsKeep,
	}
	run := onpath.RunSpec{ID: "one", Spec: spec, NetNS: instance,
		Labels: map[string]string{"onpath.tenant": "a", "onpath.instance": "cdn-1", "onpath.uid": "u"}}
	p, err := d.Start(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if b, err := getFrom(node, "/file", ""); err != nil || !bytes.Equal(b, file) {
				t.Errorf("%d bytes of %d came: %v", len(b), len(file), err)
			}
		})
	}
	all.Wait()
	if b, err := getFrom(node, "/file", "bytes=100-299"); err != nil || !bytes.Equal(b, file[100:300]) {
		t.Errorf("a part: %d bytes, %v", len(b), err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the origin was asked %d times", n)
	}
	isolated(t, p)

	if err := unix.Kill(p.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	if err := p.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	node2, instance2 := namespaces(t)
	if err := netnsrun.Do(node2, func() error { return bringUpNeighbour("v0", "10.9.0.2") }); err != nil {
		t.Fatal(err)
	}
	run.ID, run.NetNS = "two", instance2
	if p, err = d.Start(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if b, err := getFrom(node2, "/file", ""); err != nil || !bytes.Equal(b, file) {
		t.Errorf("after a crash %d bytes of %d came: %v", len(b), len(file), err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("after a crash the origin was asked again: %d times", n)
	}
	if err := p.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(opt.Dir, blobs, "*")); len(left) > 0 {
		t.Errorf("blobs are left: %v", left)
	}
}

// TestSupply: the agent connects to what the function names, and not to this machine.
func TestSupply(t *testing.T) {
	opt := options(t)
	d, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Remove(context.Background())
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	own := strings.TrimPrefix(web.URL, "http://")
	p := d.newProcess(record{ID: "x", Spec: onpath.FunctionSpec{Wasm: &onpath.WasmSpec{Modules: []onpath.WasmModule{{
		Fetch: []string{own, "169.254.169.254", "10.255.255.1:80"},
	}}}}}, nil)
	for host, why := range map[string]string{
		own: "this machine", "169.254.169.254:80": "not public", "10.255.255.1:80": "node.fetchTargets", "192.0.2.1:80": "does not name",
		own + "0": "does not name",
	} {
		f, err := p.open(t.Context(), controlWant(host))
		if err == nil {
			f.Close()
		}
		var refused *control.RefusedError
		if err == nil || !strings.Contains(err.Error(), why) || errors.As(err, &refused) == (why == "does not name") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// getFrom asks the instance, from the node's end.
func getFrom(node, path, part string) ([]byte, error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (c net.Conn, err error) {
			err = netnsrun.Do(node, func() error { c, err = net.Dial(network, address); return err })
			return c, err
		}}}
	req, err := http.NewRequest(http.MethodGet, "http://10.9.0.2"+path, nil)
	if err != nil {
		return nil, err
	}
	if part != "" {
		req.Header.Set("Range", part)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		b, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%s: %s", resp.Status, b)
	}
	return io.ReadAll(resp.Body)
}

func controlWant(host string) control.Want { return control.Want{Dial: host} }

// bringUpNeighbour has the node's end know the instance's hardware address.
func bringUpNeighbour(dev, address string) error {
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(address), HardwareAddr: instanceMAC})
}
