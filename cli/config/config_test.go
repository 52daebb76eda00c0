package config_test

import (
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/cli/config"
)

func load(t *testing.T, text string) (*config.Config, error) {
	t.Helper()
	p := filepath.Join(t.TempDir(), "onpath.yaml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(p)
}

func TestLoad(t *testing.T) {
	c, err := load(t, `
server:
  listen: "[::]:7443"
  etcd: {endpoints: ["https://10.0.0.1:2379"]}
node:
  name: fra1-gw1
  cloudlet: fra1
  underlay: {address: 10.255.0.7, mtu: 9000}
  uplinks:
  - {name: core, device: eth0, attach: router, side: core}
  capacity: {cpu: 3500m, memory: 6Gi}
`)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Server.Complete(); err != nil {
		t.Error(err)
	}
	if err := c.Node.Complete("x"); err != nil {
		t.Error(err)
	}
	spec, err := c.Node.Spec()
	if err != nil {
		t.Fatal(err)
	}
	if spec.Capacity.CPU != 3500 || spec.Uplinks[0].Attach != onpath.AttachRouter || spec.Underlay.Port != onpath.DefaultTunnelPort {
		t.Errorf("got %+v", spec)
	}
	if c.Server.Socket != config.DefaultSocket || !strings.HasSuffix(c.Server.Address, ":7443") || strings.HasPrefix(c.Server.Address, "[::]") {
		t.Errorf("defaults: %+v", c.Server)
	}
}

func TestLoadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"serverr: {}":                     `onpath.yaml:1:1: unknown field "serverr"; did you mean server?`,
		"node:\n  uplinks: [{devise: a}]": `onpath.yaml:2:14: node.uplinks[0]: unknown field "devise"; did you mean device?`,
		"a: 1\n---\nb: 2":                 "more than one document",
		"node: [1]":                       "is a list where a mapping",
		"node:\n\tname: a":                "a tab indents this line",
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := config.Load("/absent/onpath.yaml"); err == nil {
		t.Error("a file that was named and is not there")
	}
	if _, err := load(t, "# nothing\n"); err != nil {
		t.Errorf("empty file: %v", err)
	}
	for _, s := range []config.Server{{Listen: "7443"}, {Metrics: "x"}, {Log: "loud"}, {Etcd: config.Etcd{CA: "ca.pem"}}, {Etcd: config.Etcd{Endpoints: []string{"http://a:2379"}, Cert: "b"}},
		{Listen: "999.1.1.1:7443"}, {Listen: "[::]:99999"}, {Address: "edge:0"}, {Etcd: config.Etcd{Endpoints: []string{"ftp://x:1"}}}, {Etcd: config.Etcd{Endpoints: []string{""}}}, {Etcd: config.Etcd{Endpoints: []string{"a"}}}} {
		if err := s.Complete(); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestWrongName: a name that no node can have is found with its place.
func TestWrongName(t *testing.T) {
	c, err := load(t, "node:\n  name: \"A b\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Node.Complete("vm"); onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), `onpath.yaml:2:9: node.name: "A b"`) {
		t.Errorf("%v", err)
	}
	c.Node.Name = "a" // as a flag has it
	if err := c.Node.Complete("vm"); err != nil {
		t.Errorf("%v", err)
	}
}

// TestNodeByTokenAlone: a machine whose configuration says nothing is the node that its token
// is for, and leaves the cloudlet to the server, which knows the token's.
func TestNodeByTokenAlone(t *testing.T) {
	a, err := auth.OpenAuthority(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web1", ""} {
		word, _, err := a.CreateToken(auth.TokenRequest{Role: auth.RoleNode, Name: name, Cloudlet: "rented", Address: "server.example:7443"})
		if err != nil {
			t.Fatal(err)
		}
		n := config.Node{StateDir: t.TempDir(), Token: word}
		n.Underlay.Address = netip.MustParseAddr("10.0.0.7")
		if err := n.Complete("ip-10-0-0-7.internal"); err != nil {
			t.Fatal(err)
		}
		want := cmp.Or(name, "ip-10-0-0-7")
		spec, err := n.Spec()
		if err != nil || n.Name != want || spec.Cloudlet != "" {
			t.Errorf("token for %q: node %q in cloudlet %q, %v; want %s, and no cloudlet", name, n.Name, spec.Cloudlet, err, want)
		}
	}
}

func TestNodeDefaults(t *testing.T) {
	var n config.Node
	if err := n.Complete("Fra1_GW1.example.net"); err != nil || n.Name != "fra1-gw1" {
		t.Errorf("name %q, %v", n.Name, err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n = config.Node{TokenFile: token}
	if err := n.Complete("a"); err != nil || n.Token != "secret" {
		t.Errorf("token %q, %v", n.Token, err)
	}
	dir := t.TempDir()
	n = config.Node{TokenFile: token + "x", StateDir: dir}
	if err := n.Complete("a"); err == nil {
		t.Error("the file of the token is not there")
	}
	if err := errors.Join(os.Mkdir(n.Identity(), 0o700), os.WriteFile(filepath.Join(n.Identity(), "cert.pem"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := n.Complete("a"); err != nil {
		t.Errorf("the node has joined, and the token's file has gone: %v", err)
	}
	n = config.Node{TokenFile: token, Token: "b"}
	if err := n.Complete("a"); err == nil {
		t.Error("two tokens")
	}
}

func TestOwnAddress(t *testing.T) {
	if a := config.OwnAddress(); !a.IsValid() {
		t.Error("no address")
	}
	if a, err := config.AddressTowards("127.0.0.1:7443"); err != nil || !a.IsLoopback() {
		t.Errorf("towards loopback: %v, %v", a, err)
	}
	if a, err := config.AddressTowards("no server"); err == nil {
		t.Errorf("towards no server: %v", a)
	}
}

func TestAddresses(t *testing.T) {
	for _, s := range []config.Server{{Listen: "[::]:7443"}, {Listen: ":7443"}, {Listen: "127.0.0.1:0"}, {Listen: "192.0.2.1:7443", Address: "edge.example:7443"},
		{Etcd: config.Etcd{Endpoints: []string{"http://127.0.0.1:2379", "https://etcd1:2379/", "10.0.0.1:2379", "unix:///run/etcd"}}}} {
		if err := s.Complete(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, n := range []config.Node{{Server: "http://192.0.2.1:7443"}, {Server: "https://nohost"}, {Server: "https://192.0.2:7443"}, {Server: "unix://"}, {Metrics: "x"}} {
		if err := n.Complete("vm"); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%+v is taken: %v", n, err)
		}
	}
	for _, server := range []string{"", "/run/onpath/server.sock", "unix:///run/onpath/server.sock", "https://[2001:db8::1]:7443", "https://edge:7443"} {
		if n := (config.Node{Server: server}); n.Complete("vm") != nil {
			t.Errorf("%s is refused", server)
		}
	}
}

func TestParseUplink(t *testing.T) {
	for in, want := range map[string]onpath.Uplink{
		"eth1":              {Name: "eth1", Device: "eth1", Attach: onpath.AttachRouter},
		"eth1:tap":          {Name: "eth1", Device: "eth1", Attach: onpath.AttachTap},
		"a_b.7:bridge:core": {Name: "a-b-7", Device: "a_b.7", Attach: onpath.AttachBridge, Side: onpath.SideCore},
	} {
		if got, err := config.ParseUplink(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "a:b:c:d", "a:banana", "a:bridge:left"} {
		if _, err := config.ParseUplink(in); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestSecret(t *testing.T) {
	p := filepath.Join(t.TempDir(), "secret")
	s, err := config.OpenSecrets(p)
	if err != nil || len(s.Keys()) != 1 || len(s.Keys()[0]) != 32 {
		t.Fatalf("%v, %v", s, err)
	}
	first := s.Keys()[0]
	if again, err := config.OpenSecrets(p); err != nil || !slices.EqualFunc(again.Keys(), s.Keys(), bytes.Equal) {
		t.Errorf("another one the second time: %v", err)
	}
	if err := s.Rotate(); err != nil || len(s.Keys()) != 2 || !bytes.Equal(s.Keys()[1], first) {
		t.Errorf("rotated: %v, %v", s.Keys(), err)
	}
	if err := s.Rotate(); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("rotated twice: %v", err)
	}
	if again, err := config.OpenSecrets(p); err != nil || !slices.EqualFunc(again.Keys(), s.Keys(), bytes.Equal) {
		t.Errorf("a rotation is not kept: %v", err)
	}
	if err := s.EndRotation(); err != nil || len(s.Keys()) != 1 || bytes.Equal(s.Keys()[0], first) {
		t.Errorf("the rotation's end: %v, %v", s.Keys(), err)
	}
	if info, _ := os.Stat(p); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := os.WriteFile(p, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = config.OpenSecrets(p)
	if err == nil {
		t.Fatal("a damaged key was replaced or used")
	}
	for _, want := range []string{p, "5 bytes", "32", "restore it from a backup"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "%!") {
		t.Errorf("got %v", err)
	}
}
